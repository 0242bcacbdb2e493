// The official client from npm, as an agent would use it: over HTTP, and over the bridge on stdin and stdout.
// Environment: URL, KEY (may run), READ_KEY (may only read), SANDGATE (the program).
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const { URL: url, KEY: key, READ_KEY: readKey, SANDGATE: program } = process.env;

const overHTTP = (headers) => new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers } });
const overStdio = (k) =>
	new StdioClientTransport({ command: program, args: ["mcp"], env: { SANDGATE_URL: url, SANDGATE_KEY: k }, stderr: "inherit" });

async function connect(transport) {
	const client = new Client({ name: "e2e", version: "1" });
	await client.connect(transport);
	return client;
}

// call gives the structured answer of a tool; the client checks it against the tool's own schema.
async function call(client, name, args = {}) {
	const r = await client.callTool({ name, arguments: args });
	assert.equal(r.isError ?? false, false, `${name}: ${r.content?.[0]?.text}`);
	assert.deepEqual(JSON.parse(r.content[0].text), r.structuredContent);
	return r.structuredContent;
}

async function refused(client, name, args, code) {
	const r = await client.callTool({ name, arguments: args });
	assert.equal(r.isError, true, name);
	const told = JSON.parse(r.content[0].text);
	assert.equal(told.code, code, r.content[0].text);
	assert.ok(told.detail.length > 10);
}

async function work(client) {
	const { tools } = await client.listTools();
	assert.deepEqual(tools.map((t) => t.name).sort(), [
		"create_sandbox", "kill_sandbox", "list_files", "list_sandboxes", "read_file", "run_command", "write_file",
	]);
	const { id: sandbox_id, status } = await call(client, "create_sandbox", { label: "by a model" });
	assert.equal(status, "running");
	const { sandboxes } = await call(client, "list_sandboxes");
	assert.ok(sandboxes.some((s) => s.id === sandbox_id && s.label === "by a model"));

	const run = (command, more) => call(client, "run_command", { sandbox_id, command, ...more });
	const hi = await run("echo hi; echo oh >&2; exit 3");
	assert.deepEqual([hi.stdout, hi.stderr, hi.exit_code, hi.timed_out, hi.truncated], ["hi\n", "oh\n", 3, false, false]);
	const slow = await run("echo begun; sleep 100", { timeout: 1 });
	assert.deepEqual([slow.stdout, slow.exit_code, slow.timed_out], ["begun\n", 124, true]);
	const long = await run("seq 1 1000000");
	assert.equal(long.truncated, true);
	assert.ok(long.stdout.startsWith("1\n2\n") && long.stdout.endsWith("999999\n1000000\n") && long.stdout.length < 40000);

	await call(client, "write_file", { sandbox_id, path: "/work/a/b.txt", content: "grüße\n" });
	const file = await call(client, "read_file", { sandbox_id, path: "/work/a/b.txt" });
	assert.deepEqual([file.content, file.encoding, file.truncated], ["grüße\n", "utf-8", false]);
	const { entries } = await call(client, "list_files", { sandbox_id });
	assert.deepEqual(entries.map((e) => [e.path, e.type]), [["/work/a", "directory"]]);
	await refused(client, "read_file", { sandbox_id, path: "/work/none" }, "not_found");

	// Two at once, on one connection.
	const both = await Promise.all([run("sleep 0.3; echo one"), run("echo two")]);
	assert.deepEqual(both.map((r) => r.stdout), ["one\n", "two\n"]);
	return sandbox_id;
}

for (const [name, transport, reader] of [
	["http", () => overHTTP({ "X-API-Key": key }), () => overHTTP({ Authorization: `Bearer ${readKey}` })],
	["stdio", () => overStdio(key), () => overStdio(readKey)],
]) {
	const client = await connect(transport());
	const sandbox_id = await work(client);

	const looker = await connect(reader());
	assert.equal((await call(looker, "read_file", { sandbox_id, path: "/work/a/b.txt" })).content, "grüße\n");
	await refused(looker, "run_command", { sandbox_id, command: "id" }, "forbidden");
	await refused(looker, "write_file", { sandbox_id, path: "/work/x", content: "x" }, "forbidden");
	await refused(looker, "kill_sandbox", { sandbox_id }, "forbidden");
	await refused(looker, "create_sandbox", {}, "forbidden");
	await looker.close();

	await call(client, "kill_sandbox", { sandbox_id });
	await refused(client, "run_command", { sandbox_id, command: "id" }, "not_found");
	await client.close();
	console.log(`${name} holds`);
}

await assert.rejects(connect(overHTTP({ "X-API-Key": "sg_wrong" })), /not valid/);
await assert.rejects(connect(overHTTP({ "X-API-Key": key, Origin: "http://evil.example" })), /another site/);
await assert.rejects(connect(overStdio("sg_wrong")), /not valid/);

// Who cancels over the bridge ends the command: what it would have done does not happen.
{
	const client = await connect(overStdio(key));
	const { id: sandbox_id } = await call(client, "create_sandbox");
	const stop = new AbortController();
	const long = client.callTool({ name: "run_command", arguments: { sandbox_id, command: "touch /work/begun; sleep 3; touch /work/done" } }, undefined, { signal: stop.signal });
	const paths = async () => (await call(client, "list_files", { sandbox_id })).entries.map((e) => e.path);
	while (!(await paths()).includes("/work/begun"));
	stop.abort();
	await assert.rejects(long);
	await call(client, "run_command", { sandbox_id, command: "sleep 4" });
	assert.deepEqual(await paths(), ["/work/begun"]);
	await call(client, "kill_sandbox", { sandbox_id });
	await client.close();
}
console.log("MCP holds");
