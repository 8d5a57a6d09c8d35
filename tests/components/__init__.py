"""Real servers and faults for the tests: started on loopback, on free ports, in private directories.

No test talks to a mock where the real thing runs. Each module owns one component; `server` holds what they
share, `availability` says whether a component can be had on this machine and why not.
"""
