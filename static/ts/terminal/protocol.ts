// The frames of sandgate.term.v1, see docs/terminal.md. Nothing here touches the page.

import { cleanTitle } from "./text";

export const subprotocol = "sandgate.term.v1";

/** Bytes of input in one message: small, so that a paste does not hold a Ctrl-C up. */
export const inputChunk = 8 << 10;

/** Bytes of output after which an acknowledgement is due even while more is being written. */
export const ackEvery = 48 << 10;

export type Role = "driver" | "viewer";

/** Somebody at the terminal. The number is good for this connection only. */
export type Person = {
	id: number;
	name: string;
	drives: boolean;
	mayType: boolean;
	asks: boolean;
	you: boolean;
	/** Another window of the one who looks. */
	same: boolean;
};

export type ServerFrame =
	| { kind: "output" | "snapshot"; offset: number; bytes: Uint8Array }
	| { kind: "hello"; role: Role; cols: number; rows: number; driver: string; next: number }
	| { kind: "people"; people: Person[] }
	| { kind: "pong"; id: number; input: number }
	| { kind: "recording"; on: boolean }
	| { kind: "size"; cols: number; rows: number }
	| { kind: "role"; role: Role; driver: string }
	| { kind: "notice"; code: string; text: string }
	| { kind: "exit"; code: number; signal: string };

/** Reads one binary frame; undefined for a kind that is not known, which is to be ignored. */
export function decodeBinary(data: ArrayBuffer): ServerFrame | undefined {
	if (data.byteLength < 9) return undefined;
	const view = new DataView(data);
	const type = view.getUint8(0);
	if (type !== 1 && type !== 2) return undefined;
	return {
		kind: type === 1 ? "output" : "snapshot",
		offset: Number(view.getBigUint64(1)),
		bytes: new Uint8Array(data, 9),
	};
}

/** Reads one JSON message; undefined for what is not understood, which is to be ignored. */
export function decodeText(data: string): ServerFrame | undefined {
	let raw: unknown;
	try {
		raw = JSON.parse(data);
	} catch {
		return undefined;
	}
	if (typeof raw !== "object" || raw === null) return undefined;
	const m = new Map<string, unknown>(Object.entries(raw));
	const text = (name: string): string => {
		const v = m.get(name);
		return typeof v === "string" ? v : "";
	};
	const count = (name: string): number => {
		const v = m.get(name);
		return typeof v === "number" && Number.isFinite(v) ? v : 0;
	};
	const role: Role = text("role") === "driver" ? "driver" : "viewer";
	switch (text("type")) {
		case "hello":
			return {
				kind: "hello",
				role,
				cols: count("cols"),
				rows: count("rows"),
				driver: text("driver"),
				next: count("next"),
			};
		case "recording":
			return { kind: "recording", on: m.get("on") === true };
		case "people":
			return { kind: "people", people: people(m.get("people")) };
		case "pong":
			return { kind: "pong", id: count("id"), input: count("input") };
		case "size":
			return { kind: "size", cols: count("cols"), rows: count("rows") };
		case "role":
			return { kind: "role", role, driver: text("driver") };
		case "notice":
			return { kind: "notice", code: text("code"), text: text("text") };
		case "exit":
			return { kind: "exit", code: count("code"), signal: text("signal") };
		default:
			return undefined;
	}
}

function people(list: unknown): Person[] {
	if (!Array.isArray(list)) return [];
	const found: Person[] = [];
	for (const raw of list.slice(0, 100)) {
		if (typeof raw !== "object" || raw === null) continue;
		const p = new Map<string, unknown>(Object.entries(raw));
		const id = p.get("id");
		const name = p.get("name");
		if (typeof id !== "number" || typeof name !== "string") continue;
		const is = (key: string): boolean => p.get(key) === true;
		found.push({
			id,
			name: cleanTitle(name),
			drives: is("drives"),
			mayType: is("may_type"),
			asks: is("asks"),
			you: is("you"),
			same: is("same"),
		});
	}
	return found;
}

/** Makes the frames that carry input, each small enough. The bytes are cut, not the text: no surrogate pair is split. */
export function encodeInput(bytes: Uint8Array): Uint8Array<ArrayBuffer>[] {
	const frames: Uint8Array<ArrayBuffer>[] = [];
	for (let i = 0; i < bytes.length; i += inputChunk) {
		const part = bytes.subarray(i, i + inputChunk);
		const frame = new Uint8Array(part.length + 1);
		frame.set(part, 1);
		frames.push(frame);
	}
	return frames;
}

/** The bytes of old mouse reports: xterm gives them as a string of code points up to 255. */
export function latin1(data: string): Uint8Array {
	return Uint8Array.from(data, (c) => c.charCodeAt(0) & 0xff);
}

export type Ending = {
	/** The page does not come back by itself. */
	final: boolean;
	/** What happened, in words. */
	text: string;
	/** What the person can do about it. */
	offer: "none" | "new" | "sign-in" | "watch" | "again";
};

/** Says what a close code means. Transport troubles are tried again; what the server decided is final. */
export function ending(code: number, reason: string): Ending {
	const why =
		reason === "" ? "" : ` ${reason.charAt(0).toUpperCase()}${reason.slice(1)}${/[.!?]$/.test(reason) ? "" : "."}`;
	switch (code) {
		case 1000:
			return { final: true, text: "The terminal has ended.", offer: "new" };
		case 4001:
			return { final: true, text: "This terminal was taken over elsewhere.", offer: "again" };
		case 4003:
			return { final: true, text: `You lost the permission to use this terminal.${why}`, offer: "watch" };
		case 4004:
			return { final: true, text: `This terminal is gone.${why}`, offer: "new" };
		case 4008:
			return { final: true, text: "Your sign-in has ended.", offer: "sign-in" };
		case 4009:
			return { final: true, text: `This terminal needs an approval first.${why}`, offer: "again" };
		case 1008:
			return { final: true, text: `The server refused this terminal.${why}`, offer: "again" };
		case 1001:
			return { final: false, text: "The server is restarting.", offer: "none" };
		case 1013:
			return { final: false, text: "This page fell behind.", offer: "none" };
		default:
			if (code >= 4000) return { final: true, text: `The server ended this terminal (${code}).${why}`, offer: "again" };
			return { final: false, text: "The connection is lost.", offer: "none" };
	}
}

/** How long to wait before a try, in milliseconds: doubles from half a second to 15 s, spread by ±30 %. */
export function backoff(tries: number, random: () => number = Math.random): number {
	const base = Math.min(500 * 2 ** Math.min(tries, 10), 15_000);
	return Math.round(base * (0.7 + 0.6 * random()));
}

/** Says how a process ended. */
export function exitText(code: number, signal: string): string {
	if (signal !== "") return `The shell was ended by ${signal} (${code}).`;
	return code === 0 ? "The shell has exited." : `The shell has exited with code ${code}.`;
}
