# -*- coding: rot13 -*-
# attack: codec_cookie
# kind: judge-crash   task: any   naive: run
# attempts: a source that claims another encoding
cevag("cnffrq")
