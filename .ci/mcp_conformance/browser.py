"""In place of a web browser, for BROWSER: opens the address and follows where it is sent, as one that is signed in."""

import sys
import urllib.request

with urllib.request.urlopen(sys.argv[1], timeout=30) as page:
    page.read()
