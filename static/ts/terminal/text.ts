// Text that crosses between people and programs: titles out of the sandbox, pastes into it. Nothing here touches the page.

/** A paste beyond this belongs into a file: the terminal's queue holds no more. */
export const maxPaste = 1 << 20;

/** The longest line that a terminal in line mode takes; the rest of it would be cut without a word. */
const maxLine = 4095;

// biome-ignore lint/suspicious/noControlCharactersInRegex: controls are what is looked for
const controls = /[\u0000-\u001f\u007f-\u009f]/g;
// biome-ignore lint/suspicious/noControlCharactersInRegex: controls are what is looked for
const pasteControls = /[\u0000-\u0008\u000a-\u000c\u000e-\u001f\u007f-\u009f]/g;
const directions = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/** Makes a title harmless: one line of at most 100 characters, without controls and direction marks. */
export function cleanTitle(title: string): string {
	const clean = title.slice(0, 4096).replace(controls, " ").replace(directions, "").replace(/\s+/g, " ").trim();
	const chars = [...clean];
	return chars.length > 100 ? `${chars.slice(0, 99).join("")}…` : clean;
}

/**
 * Makes a paste what a keyboard could have typed: line ends become CR, controls other than tab go. Without ESC and U+009B
 * no paste can leave the brackets of bracketed paste.
 */
export function cleanPaste(text: string): string {
	return text.replace(/\r\n|\n/g, "\r").replace(pasteControls, "");
}

/** The bytes of a clean paste, in brackets where the program asked for them. */
export function pasteBytes(clean: string, bracketed: boolean): Uint8Array {
	return new TextEncoder().encode(bracketed ? `\x1b[200~${clean}\x1b[201~` : clean);
}

/** Says what a person should know before a paste is sent; undefined when there is nothing to ask. */
export function pasteQuestion(clean: string, bracketed: boolean): string | undefined {
	const lines = clean.replace(/\r$/, "").split("\r");
	if (bracketed) {
		const size = new TextEncoder().encode(clean).length;
		return size < largePaste ? undefined : `That is ${Math.round(size / 1024)} KiB in ${lines.length} lines.`;
	}
	const long = lines.some((line) => new TextEncoder().encode(line).length > maxLine);
	const cut = `A line is longer than ${maxLine} bytes and would be cut.`;
	if (lines.length > 1 || clean.endsWith("\r")) {
		const n = lines.length;
		return `${n === 1 ? "One line runs" : `${n} lines run`} as soon as pasted.${long ? ` ${cut}` : ""}`;
	}
	return long ? cut : undefined;
}

/** A paste from here on is asked about even where it does not run by itself. */
const largePaste = 32 << 10;

/** What a program may put on the clipboard, in characters. */
export const maxClipboard = 100_000;

export type ClipboardRequest = { text: string } | { refused: "read" | "size" | "malformed" };

/**
 * Reads what an OSC 52 sequence asks for: "SELECTION;BASE64". Reading the clipboard is refused always. An empty selection
 * means the clipboard, and so does any other: a browser has only one.
 */
export function clipboardRequest(data: string): ClipboardRequest {
	const at = data.indexOf(";");
	if (at < 0 || !/^[cpqs0-7]*$/.test(data.slice(0, at))) return { refused: "malformed" };
	const payload = data.slice(at + 1);
	if (payload === "?") return { refused: "read" };
	if (payload.length > maxClipboard * 4) return { refused: "size" };
	try {
		const bytes = Uint8Array.from(atob(payload), (c) => c.charCodeAt(0));
		const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
		if (text === "") return { refused: "malformed" };
		return text.length > maxClipboard ? { refused: "size" } : { text };
	} catch {
		return { refused: "malformed" };
	}
}

/** One line that shows what a text begins with, controls and line ends made visible. */
export function excerpt(text: string, most = 60): string {
	const chars = [...text.slice(0, 4 * most)];
	const shown = chars
		.slice(0, most)
		.join("")
		.replace(/\r\n|\r|\n/g, "↵")
		.replace(controls, "␣")
		.replace(directions, "␣");
	return chars.length > most || text.length > 4 * most ? `${shown}…` : shown;
}

/** Makes controls visible, for showing a paste before it is sent. */
export function visible(clean: string): string {
	return clean
		.replace(/\r/g, "\n")
		.replace(directions, (c) => `\\u${(c.codePointAt(0) ?? 0).toString(16).padStart(4, "0")}`);
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: ESC is what is looked for
const reply = /^\x1b(?:\[[?>=]?[\d;]*(?:\$y|[cnRtuIO])|[P\]_^X])/;

/** Whether xterm says this by itself, in answer to what it paints, rather than the person at the keys. */
export function isReply(data: string): boolean {
	return reply.test(data);
}

/** An address that may be opened: http or https, else undefined. */
export function safeLink(uri: string): string | undefined {
	try {
		const url = new URL(uri);
		return url.protocol === "http:" || url.protocol === "https:" ? url.href : undefined;
	} catch {
		return undefined;
	}
}
