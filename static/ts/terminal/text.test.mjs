// Tests of the terminal's pure logic: node --test static/ts/terminal/
import assert from "node:assert/strict";
import { test } from "node:test";
import { build } from "esbuild";

async function load(name) {
	const out = await build({
		entryPoints: [new URL(name, import.meta.url).pathname],
		bundle: true,
		format: "esm",
		write: false,
		target: "es2022",
	});
	return import(`data:text/javascript;base64,${Buffer.from(out.outputFiles[0].text).toString("base64")}`);
}

const p = await load("./protocol.ts");
const t = await load("./text.ts");

test("titles are one harmless line", () => {
	assert.equal(t.cleanTitle("a\u0007b\u009bc\u202ed\r\n  e\u2066"), "a b cd e");
	assert.equal(t.cleanTitle("<img src=x>"), "<img src=x>"); // shown as text
	assert.equal([...t.cleanTitle("😀".repeat(9000))].length, 100);
	assert.equal(t.cleanTitle("\u0000\u001f"), "");
});

test("a paste is what a keyboard could have typed", () => {
	assert.equal(t.cleanPaste("a\nb\r\nc\rd\te"), "a\rb\rc\rd\te");
	assert.equal(t.cleanPaste("x\x1b[201~\nid\n"), "x[201~\rid\r");
	assert.equal(t.cleanPaste("x\u009b201~\x00\x03\x7f"), "x201~");
	assert.equal(t.cleanPaste("漢字 😀"), "漢字 😀");
	assert.deepEqual([...t.pasteBytes("é", true)], [27, 91, 50, 48, 48, 126, 195, 169, 27, 91, 50, 48, 49, 126]);
});

test("answers of the terminal are told from keys", () => {
	for (const answer of [
		"\x1b[?1;2c",
		"\x1b[>0;276;0c",
		"\x1b[0n",
		"\x1b[24;80R",
		"\x1b[?2004;1$y",
		"\x1bP1$r0m\x1b\\",
		"\x1b]11;rgb:0/0/0\x1b\\",
		"\x1b[I",
	])
		assert.ok(t.isReply(answer), answer);
	for (const key of [
		"a",
		"漢",
		"\r",
		"\x03",
		"\x1b",
		"\x1b[A",
		"\x1bOA",
		"\x1b[15~",
		"\x1bOP",
		"\x1b[1;5C",
		"\x1b[200~x\x1b[201~",
		"\x1b[H",
		"\x1bb",
		"\x1b[<0;3;4M",
	])
		assert.ok(!t.isReply(key), key);
});

test("what would run at once is asked about", () => {
	assert.equal(t.pasteQuestion("ls", false), undefined);
	assert.equal(t.pasteQuestion("a\rb\r", true), undefined);
	assert.match(t.pasteQuestion("a\rb", false), /^2 lines run/);
	assert.match(t.pasteQuestion("a\r", false), /^One line runs/);
	assert.match(t.pasteQuestion("a".repeat(5000), false), /would be cut/);
});

test("a large paste is asked about even in brackets", () => {
	assert.equal(t.pasteQuestion("a\r".repeat(1000), true), undefined);
	assert.equal(t.pasteQuestion("a\r".repeat(20000), true), "That is 39 KiB in 20000 lines.");
});

test("programs write the clipboard within bounds and never read it", () => {
	const b64 = (s) => Buffer.from(s).toString("base64");
	assert.deepEqual(t.clipboardRequest(`c;${b64("hi ☃")}`), { text: "hi ☃" });
	assert.deepEqual(t.clipboardRequest(`;${b64("hi")}`), { text: "hi" });
	for (const data of ["c;?", ";?", "p;?", "cp0;?"])
		assert.deepEqual(t.clipboardRequest(data), { refused: "read" }, data);
	for (const data of ["", "c", "x;aGk=", "c;%%%", "c;", `c;${Buffer.from([0xff, 0xfe]).toString("base64")}`])
		assert.deepEqual(t.clipboardRequest(data), { refused: "malformed" }, data);
	assert.deepEqual(t.clipboardRequest(`c;${b64("x".repeat(t.maxClipboard))}`), { text: "x".repeat(t.maxClipboard) });
	assert.deepEqual(t.clipboardRequest(`c;${b64("x".repeat(t.maxClipboard + 1))}`), { refused: "size" });
	assert.deepEqual(t.clipboardRequest(`c;${"A".repeat(9 << 20)}`), { refused: "size" });
	assert.equal(t.excerpt("curl x|sh\n\u001b[A\u202e"), "curl x|sh↵␣[A␣");
	assert.equal(t.excerpt("x".repeat(1e6)), `${"x".repeat(60)}…`);
});

test("people are read within bounds, their names made harmless", () => {
	const f = p.decodeText(
		JSON.stringify({
			type: "people",
			people: [
				{ id: 1, name: "a\u0007b\u202e", drives: true, may_type: true, asks: false, you: true, same: false },
				{ id: 2, name: "eve", asks: true },
				{ id: "3", name: "no number" },
				7,
				null,
			],
		}),
	);
	assert.equal(f.kind, "people");
	assert.deepEqual(f.people, [
		{ id: 1, name: "a b", drives: true, mayType: true, asks: false, you: true, same: false },
		{ id: 2, name: "eve", drives: false, mayType: false, asks: true, you: false, same: false },
	]);
	assert.deepEqual(p.decodeText('{"type":"people","people":"x"}'), { kind: "people", people: [] });
	assert.deepEqual(p.decodeText('{"type":"pong","id":3,"input":9}'), { kind: "pong", id: 3, input: 9 });
});

test("only web addresses open", () => {
	for (const bad of ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "x", "vbscript:x", " "])
		assert.equal(t.safeLink(bad), undefined, bad);
	assert.equal(t.safeLink("https://example.org/a?b"), "https://example.org/a?b");
});

test("input is cut into small frames, byte for byte", () => {
	const bytes = Uint8Array.from({ length: 20000 }, (_, i) => i % 256);
	const frames = p.encodeInput(bytes);
	assert.deepEqual(
		frames.map((f) => f.length),
		[8193, 8193, 3617],
	);
	assert.ok(frames.every((f) => f[0] === 0));
	assert.deepEqual(Buffer.concat(frames.map((f) => f.subarray(1))), Buffer.from(bytes));
	assert.deepEqual(p.encodeInput(new Uint8Array()), []);
	assert.deepEqual([...p.latin1("\u0000\u00ffA")], [0, 255, 65]);
});

test("frames are read, unknown ones ignored", () => {
	const frame = new Uint8Array([1, 0, 0, 0, 1, 0, 0, 0, 2, 65, 66]);
	const f = p.decodeBinary(frame.buffer);
	assert.equal(f.kind, "output");
	assert.equal(f.offset, 2 ** 32 + 2);
	assert.deepEqual([...f.bytes], [65, 66]);
	assert.equal(p.decodeBinary(new Uint8Array([7, 0, 0, 0, 0, 0, 0, 0, 0]).buffer), undefined);
	assert.equal(p.decodeBinary(new Uint8Array([1]).buffer), undefined);
	for (const bad of ["", "{", "7", "null", '{"type":"nope"}', "[]"]) assert.equal(p.decodeText(bad), undefined, bad);
	assert.deepEqual(
		p.decodeText('{"type":"hello","role":"driver","cols":80,"rows":24,"oldest":0,"next":5,"driver":"ann"}'),
		{
			kind: "hello",
			role: "driver",
			cols: 80,
			rows: 24,
			driver: "ann",
			next: 5,
		},
	);
	assert.deepEqual(p.decodeText('{"type":"size","cols":"x"}'), { kind: "size", cols: 0, rows: 0 });
});

test("close codes: transport comes back, decisions are final", () => {
	for (const code of [1001, 1005, 1006, 1009, 1011, 1012, 1013, 1014, 1015])
		assert.equal(p.ending(code, "").final, false, `${code}`);
	for (const code of [1000, 1008, 4001, 4003, 4004, 4008, 4009, 4400, 4500])
		assert.equal(p.ending(code, "").final, true, `${code}`);
	assert.equal(p.ending(4008, "").offer, "sign-in");
	assert.equal(p.ending(4004, "the sandbox was killed").text, "This terminal is gone. The sandbox was killed.");
});

test("waiting doubles, is spread, and has an end", () => {
	assert.deepEqual(
		[0, 1, 2, 3, 4, 5, 99].map((n) => p.backoff(n, () => 0.5)),
		[500, 1000, 2000, 4000, 8000, 15000, 15000],
	);
	assert.equal(
		p.backoff(0, () => 0),
		350,
	);
	assert.equal(
		p.backoff(5, () => 1),
		19500,
	);
});

test("an exit is told in words", () => {
	assert.equal(p.exitText(0, ""), "The shell has exited.");
	assert.equal(p.exitText(3, ""), "The shell has exited with code 3.");
	assert.equal(p.exitText(137, "KILL"), "The shell was ended by KILL (137).");
});
