"""What a script does with the unmodified SDK; each claim is an assertion. Started by sdk_test.go."""

import time

from noxus_sdk import Client
from noxus_sdk.errors import NotFoundError, ValidationError

client = Client.from_env()  # asks for the nodes and for the key's own record first

with client.sandboxes.create(label="tier a", persistent=False) as sb:
    assert sb.status == "running" and sb.label == "tier a", sb
    assert sb.id in [s.id for s in client.sandboxes.list()]
    assert client.sandboxes.get(sb.id).id == sb.refresh().id == sb.id

    every_byte = bytes(range(256)) * 64
    assert sb.files.write("/work/deep/er/bytes.bin", every_byte) == "/work/deep/er/bytes.bin"
    assert sb.files.read_bytes("/work/deep/er/bytes.bin") == every_byte
    text = "naïve ☃ \u202e 𝛑\r\n\ttab\n"
    sb.files.write("/work/text.txt", text)
    assert sb.files.read("/work/text.txt") == text
    sb.files.write("/work/empty", "")
    assert sb.files.read_bytes("/work/empty") == b""

    def code(command, timeout=None):
        return sb.commands.run(command, timeout)

    for want in (0, 1, 126, 127, 137, 255):
        assert code(f"exit {want}").exit_code == want, want
    assert code("kill -9 $$").exit_code == 137
    assert code("kill -TERM $$").exit_code == 143
    assert code("no-such-program").exit_code == 127
    assert code("echo x >/work/plain; /work/plain").exit_code == 126
    r = code("echo out; echo err >&2; exit 3")
    assert (r.stdout, r.stderr, r.exit_code, r.timed_out, r.ok) == ("out\n", "err\n", 3, False, False), r
    assert code("pwd").stdout == "/work\n"
    assert code("echo $LANG").stdout == "C.UTF-8\n"
    assert code("python -c 'print(6*7)'").stdout == "42\n"
    assert code("pip --version").exit_code == 0
    assert code("tty").exit_code != 0  # a command has no terminal

    # A tree that ignores TERM, with a double fork into a session of its own: the time-out leaves nothing of it.
    begin = time.monotonic()
    r = code("echo partial; trap '' TERM; (setsid bash -c \"trap '' TERM; sleep 7771 & while :; do :; done\" &); sleep 7772", timeout=2)
    assert r.timed_out and r.exit_code == 124 and r.stdout == "partial\n" and not r.ok, r
    assert 1.5 < time.monotonic() - begin < 8, time.monotonic() - begin
    left = code("ps -eo pid,args | grep '[s]leep 777' || true").stdout
    assert left == "", left
    busy = code("ps -eo pid,args | grep '[w]hile :' || true").stdout
    assert busy == "", busy

    # The main process is gone, but a child holds its output: the answer does not wait for the child.
    begin = time.monotonic()
    assert code("sleep 30 & echo started").stdout == "started\n"
    assert time.monotonic() - begin < 5

    big = code("head -c 20000000 /dev/zero | tr '\\0' x")
    assert big.exit_code == 0 and len(big.stdout) == 16 << 20, len(big.stdout)

    try:
        sb.files.read("/work/missing")
        raise AssertionError("a missing file was read")
    except NotFoundError:
        pass
    try:
        sb.files.write("relative", "x")
        raise AssertionError("a relative path was written")
    except ValidationError:
        pass
    try:
        code("")
        raise AssertionError("an empty command ran")
    except ValidationError:
        pass
    kept = sb.id

assert client.sandboxes.delete(kept) is True  # gone already: still a success
try:
    client.sandboxes.get(kept)
    raise AssertionError("a killed sandbox answers")
except NotFoundError as e:
    assert e.request_id, e
try:
    client.sandboxes.delete("sb" + "0" * 20)
    raise AssertionError("an unknown sandbox was deleted")
except NotFoundError:
    pass
print("tier A holds")
