"""The official client where a person has to approve: it sees 403 and 409 as documented, and needs no header of ours."""

import os
import sys
import threading
import urllib.request
import json

from noxus_sdk.client import Client
from noxus_sdk.errors import ForbiddenError, NoxusApiError

base, judge = os.environ["NOXUS_BACKEND_URL"], os.environ["JUDGE_API_KEY"]


def decide(path, body):
    request = urllib.request.Request(base + path, json.dumps(body).encode(), {"X-API-Key": judge, "Content-Type": "application/json"}, method="POST" if body is not None else "GET")
    if body is None:
        request.data = None
    return json.load(urllib.request.urlopen(request))


def pending():
    return decide("/v1/approvals?status=pending", None)["items"]


def when_asked(verb, body):
    """Decides about the next request, on another thread, as a person would in a browser."""

    def run():
        while not (items := pending()):
            threading.Event().wait(0.05)
        decide("/v1/approvals/%s/%s" % (items[0]["id"], verb), body)

    t = threading.Thread(target=run)
    t.start()
    return t


client = Client(os.environ["NOXUS_API_KEY"])
sandbox = client.sandboxes.get(sys.argv[1])

t = when_asked("approve", {})
done = sandbox.commands.run("echo approved")
t.join()
assert done.stdout == "approved\n" and done.exit_code == 0, done

t = when_asked("deny", {"reason": "not today"})
try:
    sandbox.commands.run("echo denied")
    raise SystemExit("it ran")
except ForbiddenError as e:
    assert e.status_code == 403 and "not today" in str(e), e
    assert e.body["code"] == "approval_denied" and e.body["reason"] == "not today" and e.body["approval_id"], e.body
t.join()

t = when_asked("approve", {})
sandbox.files.write("/work/a", b"bytes \xff")
t.join()
t = when_asked("approve", {})
assert sandbox.commands.run("wc -c < /work/a").stdout.strip() == "7"
t.join()

impatient = Client(os.environ["NOXUS_API_KEY"], extra_headers={"Prefer": "wait=0"})
again = impatient.sandboxes.get(sys.argv[1])
try:
    again.commands.run("echo later")
    raise SystemExit("it ran")
except NoxusApiError as e:
    assert e.status_code == 409 and e.body["code"] == "approval_required", e.body
    first = e.body["approval_id"]
try:
    again.commands.run("echo later")
    raise SystemExit("it ran")
except NoxusApiError as e:
    assert e.body["approval_id"] == first, "the same call finds its own request"
decide("/v1/approvals/%s/approve" % first, {})
assert again.commands.run("echo later").stdout == "later\n"
print("the client sees what is documented")
