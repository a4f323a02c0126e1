"""The verifier ``code``: does a program that a model wrote do what the problem's cases say?

The completion's program is cut out (``extract.py``), run in the sandbox (``verifiers/sandbox``) on cases that were
checked at the door (``cases.py``), and what comes out is compared outside of it (``compare.py``); test code runs in a
second sandbox (``split.py``). ``verifier.py`` makes one verdict of it.

What it does not protect from: errors of the kernel and side channels of the processor (levels share the kernel of the
machine); tests that a wrong program passes, as no cases say more than they say; a program that knows the cases from its
training. docs/code.md says which level holds what.
"""
