"""The examples of the SDK's own page on sandboxes, as they stand there, sync and async. Started by sdk_test.go.

What is added are the assertions, and the ways in which a with block can end.
"""

import asyncio
import os

from noxus_sdk.client import Client
from noxus_sdk.errors import ForbiddenError, NotFoundError, NoxusApiError, UnauthorizedError, ValidationError

client = Client(os.environ["NOXUS_API_KEY"], base_url=os.environ["NOXUS_BACKEND_URL"])


def gone(sandbox_id):
    try:
        client.sandboxes.get(sandbox_id)
    except NotFoundError:
        return True
    return False


def lifecycle():
    sb = client.sandboxes.create(label="my-job", persistent=False)   # -> Sandbox
    assert sb in client.sandboxes.list() or sb.id in [s.id for s in client.sandboxes.list()]
    sandbox_id = sb.id
    assert client.sandboxes.get(sandbox_id).label == "my-job"
    assert sb.refresh().status == "running"
    assert sb.created_at and sb.last_activity
    assert client.sandboxes.delete(sandbox_id) is True
    assert sb.kill() is True                                         # same as delete, on the object
    assert gone(sandbox_id)


def context_manager():
    with client.sandboxes.create(label="job") as sb:
        sb.files.write("/work/data.json", '{"n": 1}')
        result = sb.commands.run("cat /work/data.json")
        print(result.stdout)
    assert result.stdout == '{"n": 1}'
    assert gone(sb.id)

    class Oops(Exception):
        pass

    try:
        with client.sandboxes.create(label="raises") as sb:
            raise Oops
    except Oops:
        pass
    assert gone(sb.id), "killed on exit, even if the block raises"

    with client.sandboxes.create(label="goes away") as sb:
        sb.kill()
    assert gone(sb.id)

    # It is gone while it is worked in: the error of the call comes out, not one of the cleaning up.
    try:
        with client.sandboxes.create(label="goes away too") as sb:
            client.sandboxes.delete(sb.id)
            sb.commands.run("true")
        raise AssertionError("a command ran in a sandbox that is gone")
    except NotFoundError:
        pass


def commands():
    with client.sandboxes.create() as sb:
        result = sb.commands.run("python -c 'print(2+2)'", timeout=60)
        assert result.stdout == "4\n"
        assert result.stderr == ""
        assert result.exit_code == 0
        assert result.timed_out is False
        # Words that could mean something on the way there mean nothing.
        for words in ("detach", "exec", "--", "-d", "--help", "exec -d -- true", "$(nothing)", "a'b\"c\\", "kill -9 1", "x" * 100_000):
            out = sb.commands.run("cat <<'END'\n" + words + "\nEND")
            assert (out.stdout, out.exit_code) == (words + "\n", 0), (words[:50], out.stdout[:200], out.stderr[:200])
        assert sb.commands.run("printf '%s|' detach exec -- --detach").stdout == "detach|exec|--|--detach|"
        assert sb.commands.run("exec echo detach").stdout == "detach\n"
        assert sb.commands.run("-- true").exit_code == 127
        assert sb.commands.run("--help").exit_code == 127
        # A command that closes its output early ends when it ends, and what it says elsewhere is there.
        out = sb.commands.run("echo early; exec >&-; sleep 0.5; echo late >&2; exit 7")
        assert (out.stdout, out.stderr, out.exit_code) == ("early\n", "late\n", 7), out
        out = sb.commands.run("exec >&- 2>&-; sleep 0.3; exit 9")
        assert (out.stdout, out.stderr, out.exit_code) == ("", "", 9), out
        # One that forks and exits while its child holds the output.
        out = sb.commands.run("(sleep 30; echo never) & echo parent; exit 5")
        assert (out.stdout, out.exit_code) == ("parent\n", 5), out


def files():
    with client.sandboxes.create() as sb:
        sb.files.write("/work/script.py", "print('hi')")     # str or bytes
        sb.files.write("/work/blob.bin", b"\x00\x01")
        content = sb.files.read("/work/script.py")            # -> str
        raw = sb.files.read_bytes("/work/blob.bin")           # -> bytes
        assert content == "print('hi')"
        assert raw == b"\x00\x01"


def recipe():
    script = """
import os
from noxus_sdk.client import Client
c = Client.from_env()
print([kb.name for kb in c.knowledge_bases.list()])
"""
    with client.sandboxes.create(label="sdk-run") as sb:
        sb.files.write("/work/run.py", script)
        out = sb.commands.run(
            "export NOXUS_API_KEY=... NOXUS_BACKEND_URL=https://backend.noxus.ai; "
            "python /work/run.py"
        )
        print(out.stdout, "exit", out.exit_code)
    # Another platform's key is not ours to have, so it fails there; but it is the SDK that ran.
    assert out.exit_code != 0 and "noxus_sdk" in out.stderr, out.stderr
    assert client.knowledge_bases.list() is not None
    assert [kb.name for kb in client.knowledge_bases.list()] == []


async def everything_async():
    sb = await client.sandboxes.acreate(label="my-job", persistent=False)
    assert sb.id in [s.id for s in await client.sandboxes.alist()]
    assert (await client.sandboxes.aget(sb.id)).id == sb.id
    assert (await sb.arefresh()).status == "running"
    await sb.files.awrite("/work/script.py", "print('hi')")
    await sb.files.awrite("/work/blob.bin", b"\x00\x01")
    assert await sb.files.aread("/work/script.py") == "print('hi')"
    assert await sb.files.aread_bytes("/work/blob.bin") == b"\x00\x01"
    result = await sb.commands.arun("python -c 'print(2+2)'", timeout=60)
    assert (result.stdout, result.exit_code, result.timed_out) == ("4\n", 0, False)
    assert await client.sandboxes.adelete(sb.id) is True
    assert await sb.akill() is True

    async with await client.sandboxes.acreate() as sb:   # async form
        assert (await sb.commands.arun("echo in")).stdout == "in\n"
    assert gone(sb.id)
    try:
        async with await client.sandboxes.acreate() as sb:
            raise KeyError
    except KeyError:
        pass
    assert gone(sb.id)
    async with await client.sandboxes.acreate() as sb:
        await sb.akill()

    # Several at once, each with its own.
    async def one(n):
        async with await client.sandboxes.acreate(label=f"n{n}") as sb:
            await sb.files.awrite("/work/n", str(n))
            return (await sb.commands.arun("cat /work/n")).stdout

    assert await asyncio.gather(*(one(n) for n in range(4))) == ["0", "1", "2", "3"]


def administration():
    admin = Client(os.environ["ADMIN_API_KEY"], base_url=os.environ["NOXUS_BACKEND_URL"]).admin
    me = admin.get_me()
    assert me.tenant_admin is True and "keys:manage" in me.permissions, me
    (workspace,) = admin.list_workspaces()
    assert [u.email for u in admin.list_users()] == ["ann@example.org"]
    assert all(u.is_active for u in admin.list_users())
    assert "viewer" in [r["name"] for r in admin.list_roles()]

    made = admin.create_system_key("robot", permissions=["sandboxes:read"])
    assert made.value.startswith("sg_") and made.permissions == ["sandboxes:read"], made
    reader = Client(made.value, base_url=os.environ["NOXUS_BACKEND_URL"])
    assert reader.sandboxes.list() == []
    try:
        reader.sandboxes.create()
        raise AssertionError("a key that may read created")
    except ForbiddenError as e:
        assert e.request_id
    shown = {k.id: k for k in admin.list_system_keys()}
    assert made.value not in shown[made.id].value
    assert admin.delete_system_key(made.id) is True
    try:
        reader.sandboxes.list()
        raise AssertionError("a revoked key was taken")
    except UnauthorizedError:
        pass

    added = workspace.add_api_key("worker")
    assert "keys:manage" not in added.permissions, added
    with Client(added.value, base_url=os.environ["NOXUS_BACKEND_URL"]).sandboxes.create() as sb:
        assert sb.commands.run("echo works").stdout == "works\n"
    for refused, error in (
        (lambda: workspace.add_api_key("boss", is_admin=True), ValidationError),
        (lambda: admin.create_system_key("none"), ValidationError),
        (lambda: admin.create_workspace("lab"), ForbiddenError),
        (lambda: workspace.delete(), ForbiddenError),
        (lambda: admin.create_role("runner", {"sandboxes:run": True}), ForbiddenError),
        (lambda: admin.delete_role("viewer"), ForbiddenError),
        (lambda: client.admin.list_users(), ForbiddenError),
        (lambda: client.admin.list_roles(), ForbiddenError),
        (lambda: client.admin.create_system_key("more", permissions=["sandboxes:run"]), ForbiddenError),
    ):
        try:
            refused()
            raise AssertionError("it was not refused")
        except NoxusApiError as e:
            assert type(e) is error, e


for example in (lifecycle, context_manager, commands, files, recipe, administration):
    example()
asyncio.run(everything_async())
assert client.sandboxes.list() == []
print("the examples hold")
