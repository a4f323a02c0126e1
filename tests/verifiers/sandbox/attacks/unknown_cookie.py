# -*- coding: sbx-none -*-
# attack: unknown_cookie
# kind: judge-crash   task: any   naive: run
# attempts: a source that claims an encoding that there is not
print(0)
