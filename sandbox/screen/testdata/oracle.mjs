// The browser's terminal without a browser: says whether snapshots paint what a terminal shows that saw everything. Reads one JSON
// line per case {cols, rows, all, cuts: [{at, paint}]} with bytes in base64, writes one {faults: [...]} each.
import { createInterface } from "node:readline";
import headless from "@xterm/headless";

// The addon reads its table wrong where there is node's Buffer; a browser has none.
const { Buffer } = globalThis;
delete globalThis.Buffer;
const { default: addon } = await import("@xterm/addon-unicode-graphemes");
globalThis.Buffer = Buffer;

function terminal(cols, rows) {
	const t = new headless.Terminal({ cols, rows, scrollback: 5000, allowProposedApi: true, logLevel: "off" });
	t.loadAddon(new addon.UnicodeGraphemesAddon());
	t.unicode.activeVersion = "15-graphemes";
	t.said = "";
	t.onData((d) => {
		t.said += d;
	});
	t.onTitleChange((title) => {
		t.titled = title;
	});
	return t;
}

const write = (t, bytes) => new Promise((done) => t.write(bytes, done));

function look(c) {
	const blank = c.getChars() === "" || c.getChars() === " ";
	const seen = c.isInverse() || c.isUnderline() || c.isStrikethrough() || c.isOverline();
	const flags = [c.isBold(), c.isDim(), c.isItalic(), c.isBlink(), c.isInvisible()].map((v) => (v ? 1 : 0)).join("");
	const lines = [c.isInverse(), c.isUnderline(), c.isStrikethrough(), c.isOverline()].map((v) => (v ? 1 : 0)).join("");
	const fg = c.isFgDefault() ? "" : `f${c.getFgColorMode() >> 24}.${c.getFgColor()}`;
	const bg = c.isBgDefault() ? "" : `b${c.getBgColorMode() >> 24}.${c.getBgColor()}`;
	if (blank && !seen) return bg ? ` [${bg}]` : " ";
	const more = c.getWidth() === 0 ? "" : `${fg}${bg}${flags === "00000" ? "" : `/${flags}`}${lines === "0000" ? "" : `|${lines}`}`;
	return `${c.getWidth() === 0 ? "" : c.getChars() || " "}${c.getWidth() === 1 ? "" : `<${c.getWidth()}>`}${more ? `[${more}]` : ""}`;
}

function rowsOf(buffer, cols) {
	const out = [];
	for (let y = 0; y < buffer.length; y++) {
		const line = buffer.getLine(y);
		let text = "";
		for (let x = 0; x < cols; x++) text += look(line.getCell(x));
		out.push(text.trimEnd());
	}
	return out;
}

function state(t) {
	const core = t._core;
	const b = core._bufferService.buffer;
	const s = {
		type: t.buffer.active.type,
		cursor: `${t.buffer.active.cursorX},${t.buffer.active.cursorY}`,
		region: `${b.scrollTop},${b.scrollBottom}`,
		saved: `${Math.min(b.savedX, t.cols - 1)},${Math.max(b.savedY - b.ybase, 0)}`,
		hidden: core.coreService.isCursorHidden,
		eol: core.optionsService.rawOptions.convertEol,
		blink: core.optionsService.rawOptions.cursorBlink,
		shape: `${core.coreService.decPrivateModes.cursorStyle}`,
		encoding: core.coreMouseService.activeEncoding,
		charset: JSON.stringify(core._charsetService.charset ?? null),
		modes: JSON.stringify({ ...t.modes, synchronizedOutputMode: false }),
		tabs: Object.keys(b.tabs).filter((k) => b.tabs[k] && k < t.cols).join(),
		title: t.titled ?? "",
	};
	// A line below is told by its style, or by this bit of fg: what is printed shows which.
	s.pen = `${colour(core._inputHandler._curAttrData.fg & ~0x10000000)},${colour(core._inputHandler._curAttrData.bg & 0x0fffffff)}`;
	return s;
}

// A colour keeps bits of the one before it that do not count.
function colour(v) {
	const kind = v & 0x3000000;
	return (v & 0xff000000) | (kind === 0 ? 0 : kind === 0x3000000 ? v & 0xffffff : v & 0xff);
}

function compare(where, want, got, faults) {
	const a = state(want);
	const b = state(got);
	if (where.startsWith("at the end") === false) b.title = a.title; // an OSC ends with the ESC that a cut leaves to what follows
	for (const k of Object.keys(a)) if (a[k] !== b[k]) faults.push(`${where}: ${k} is ${b[k]}, not ${a[k]}`);
	for (const kind of ["normal", "alternate"]) {
		if (kind === "alternate" && a.type !== "alternate") continue;
		const w = rowsOf(want.buffer[kind], want.cols);
		const g = rowsOf(got.buffer[kind], got.cols);
		const kept = Math.min(g.length, w.length);
		for (let i = 1; i <= kept; i++) {
			if (w.at(-i) !== g.at(-i)) {
				faults.push(`${where}: ${kind} row -${i} of ${w.length}/${g.length} is ${JSON.stringify(g.at(-i))}, not ${JSON.stringify(w.at(-i))}`);
				if (faults.length > 6) return;
			}
		}
		if (kind === "normal" && g.length > w.length) faults.push(`${where}: ${g.length} rows, not ${w.length}`);
		if (kind === "normal" && !where.startsWith("loose") && g.length < Math.min(w.length, 800)) faults.push(`${where}: only ${g.length} rows of ${w.length}`);
	}
}

for await (const text of createInterface({ input: process.stdin })) {
	const c = JSON.parse(text);
	const all = Buffer.from(c.all, "base64");
	const faults = [];
	const full = terminal(c.cols, c.rows);
	const fresh = [];
	let at = 0;
	for (const cut of c.cuts) {
		await write(full, all.subarray(at, cut.at));
		for (const f of fresh) await write(f.t, all.subarray(at, cut.at));
		at = cut.at;
		const t = terminal(c.cols, c.rows);
		await write(t, Buffer.from(cut.paint, "base64"));
		if (t.said) faults.push(`at ${cut.at}: the snapshot made the terminal say ${JSON.stringify(t.said)}`);
		compare(`at ${cut.at}`, full, t, faults);
		fresh.push({ t, at: cut.at });
		if (faults.length > 6) break;
	}
	await write(full, all.subarray(at));
	for (const f of fresh) {
		await write(f.t, all.subarray(at));
		compare(`at the end, since ${f.at}`, full, f.t, faults);
		f.t.dispose();
	}
	full.dispose();
	process.stdout.write(`${JSON.stringify({ faults })}\n`);
}
