// The connection to one terminal: it keeps the offset, comes back by itself, and gives credit. It knows nothing of xterm.
import {
	ackEvery,
	backoff,
	decodeBinary,
	decodeText,
	type Ending,
	encodeInput,
	ending,
	type ServerFrame,
	subprotocol,
} from "./protocol";

export type LinkState =
	| { name: "connecting" }
	| { name: "connected" }
	| { name: "waiting"; text: string; until: number }
	| { name: "closed"; ending: Ending };

export type LinkEvents = {
	state(state: LinkState): void;
	/**
	 * Output to paint; done is called when it is painted, which gives the credit back. live says that it was printed while
	 * this page was connected, and is not caught up with.
	 */
	output(bytes: Uint8Array, live: boolean, done: () => void): void;
	/** A whole new screen, in the place of what was there. */
	snapshot(bytes: Uint8Array, done: () => void): void;
	message(frame: Exclude<ServerFrame, { kind: "output" | "snapshot" | "pong" }>): void;
	/** The connection broke, and nobody knows whether what was typed last arrived; or the rest of a paste was not sent. */
	lost(rest: boolean): void;
};

export type ClientMessage = {
	type: string;
	cols?: number;
	rows?: number;
	name?: string;
	offset?: number;
	id?: number;
	viewer?: number;
};

/** A connection counts as useful after this many milliseconds; only then the waiting starts small again. */
const usefulAfter = 5000;
/** An acknowledgement for little output waits this long for more. */
const ackIdle = 60;
/** Input that may wait in the browser, in bytes. */
const maxBuffered = 64 << 10;
/** Whether what was typed arrived is asked after this. */
const askAfter = 500;
/** A socket that says nothing at all for so long after a question is dead, whatever it says of itself … */
const deadAfter = 8000;
/** … or for so long while a paste is under way, which the question stands behind. */
const deadAfterPaste = 30_000;

export class Link {
	/** Offset of the byte that comes next; -1 before anything came. */
	private next = -1;
	private painted = -1;
	private acked = -1;
	private liveFrom = 0;
	private epoch = 0;
	private socket: WebSocket | undefined;
	private tries = 0;
	private timer = 0;
	private ackTimer = 0;
	private useful = 0;
	private exited = false;
	private offline = false;
	private done = false;
	private sending: Promise<unknown> = Promise.resolve();
	private typed = 0; // bytes of input sent on this connection
	private arrived = 0; // … of which the server said that it has them
	private asked = 0;
	private askTimer = 0;
	private deadTimer = 0;
	private readonly stop = new AbortController();

	constructor(
		private readonly url: string,
		private readonly on: LinkEvents,
	) {
		const { signal } = this.stop;
		window.addEventListener("offline", () => (this.offline = true), { signal });
		window.addEventListener("online", () => this.awake(), { signal });
		window.addEventListener("pageshow", () => this.awake(), { signal });
		window.addEventListener("focus", () => this.awake(), { signal });
		document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.awake(), {
			signal,
		});
		this.dial();
	}

	get connected(): boolean {
		return this.socket?.readyState === WebSocket.OPEN;
	}

	/** Tries at once instead of waiting. */
	retry(): void {
		this.done = false;
		window.clearTimeout(this.timer);
		this.drop();
		this.dial();
	}

	close(): void {
		this.stop.abort();
		window.clearTimeout(this.timer);
		this.drop();
	}

	send(message: ClientMessage): void {
		if (this.connected) this.socket?.send(JSON.stringify(message));
	}

	/** Sends input in order; a long one in pieces, no faster than the browser gets rid of them. What a lost connection cut is not sent later. */
	input(bytes: Uint8Array): void {
		const socket = this.socket;
		this.sending = this.sending.then(async () => {
			for (const frame of encodeInput(bytes)) {
				while (socket?.readyState === WebSocket.OPEN && socket.bufferedAmount > maxBuffered) {
					await new Promise((resolve) => window.setTimeout(resolve, 10));
				}
				if (socket?.readyState !== WebSocket.OPEN || socket !== this.socket) {
					if (!this.done && !this.exited) this.on.lost(true);
					return;
				}
				socket.send(frame);
				this.typed += frame.length - 1;
				this.askSoon();
			}
		});
	}

	/** A socket that was open while the machine slept or was offline may be dead without saying so: ask, or dial anew. */
	private awake(): void {
		if (this.done) return;
		if (this.offline || (this.timer !== 0 && !this.connected)) this.retry();
		else if (this.connected) this.ask();
		this.offline = false;
	}

	private askSoon(): void {
		if (this.askTimer === 0 && this.deadTimer === 0) this.askTimer = window.setTimeout(() => this.ask(), askAfter);
	}

	/** Asks for a sign of life, and for how much of the input arrived. */
	private ask(): void {
		window.clearTimeout(this.askTimer);
		window.clearTimeout(this.deadTimer);
		this.askTimer = 0;
		this.send({ type: "ping", id: ++this.asked });
		const patience = this.typed - this.arrived > maxBuffered ? deadAfterPaste : deadAfter;
		this.deadTimer = window.setTimeout(() => {
			this.deadTimer = 0;
			this.broke("The connection is lost.");
		}, patience);
	}

	private dial(): void {
		this.timer = 0;
		this.on.state({ name: "connecting" });
		const url = new URL(this.url, location.href);
		url.protocol = url.protocol.replace(/^http/, "ws");
		url.searchParams.set("since", String(this.next));
		const socket = new WebSocket(url, subprotocol);
		socket.binaryType = "arraybuffer";
		this.socket = socket;
		const current = (): boolean => this.socket === socket;
		socket.onopen = () => {
			if (!current()) return;
			if (socket.protocol !== subprotocol) {
				this.finish({ final: true, text: "The server speaks another version. Reload the page.", offer: "none" });
				return;
			}
			this.useful = window.setTimeout(() => (this.tries = 0), usefulAfter);
		};
		socket.onmessage = (e: MessageEvent<unknown>) => {
			if (current()) this.receive(e.data);
		};
		socket.onclose = (e) => {
			if (!current()) return;
			window.clearTimeout(this.useful);
			const end = ending(e.code, e.reason);
			if (end.final || this.exited) this.finish(end);
			else this.broke(end.text);
		};
	}

	private receive(data: unknown): void {
		if (this.deadTimer !== 0) {
			// Anything that comes is a sign of life.
			window.clearTimeout(this.deadTimer);
			this.deadTimer = 0;
			if (this.typed > this.arrived) this.askSoon();
		}
		const frame =
			typeof data === "string" ? decodeText(data) : data instanceof ArrayBuffer ? decodeBinary(data) : undefined;
		if (frame === undefined) return;
		switch (frame.kind) {
			case "output":
				this.output(frame.offset, frame.bytes);
				return;
			case "snapshot": {
				// What was under way belongs to the old screen; its credit goes with the snapshot's.
				this.epoch++;
				this.next = frame.offset;
				this.acked = -1;
				this.on.snapshot(frame.bytes, this.paints(frame.offset));
				return;
			}
			case "pong":
				this.arrived = frame.input;
				return;
			case "hello":
				this.liveFrom = frame.next;
				this.on.state({ name: "connected" });
				break;
			case "exit":
				this.exited = true;
		}
		this.on.message(frame);
	}

	private output(offset: number, bytes: Uint8Array): void {
		if (this.next < 0) this.next = offset;
		if (offset > this.next) {
			// A gap: never painted over. A fresh screen is asked for instead.
			this.next = -1;
			this.retry();
			return;
		}
		const fresh = bytes.subarray(this.next - offset);
		const live = this.next >= this.liveFrom;
		this.next += fresh.length;
		if (fresh.length > 0) this.on.output(fresh, live, this.paints(this.next));
	}

	private paints(offset: number): () => void {
		const epoch = this.epoch;
		return () => {
			if (epoch !== this.epoch) return;
			this.painted = offset;
			if (this.painted - this.acked >= ackEvery || this.acked < 0) this.ack();
			else if (this.ackTimer === 0) this.ackTimer = window.setTimeout(() => this.ack(), ackIdle);
		};
	}

	private ack(): void {
		window.clearTimeout(this.ackTimer);
		this.ackTimer = 0;
		if (this.painted <= this.acked) return;
		this.acked = this.painted;
		this.send({ type: "ack", offset: this.painted });
	}

	/** The connection is gone by no decision of the server: it is tried again. */
	private broke(text: string): void {
		const unsure = this.typed > this.arrived;
		this.drop();
		const pause = backoff(this.tries++);
		this.timer = window.setTimeout(() => this.dial(), pause);
		if (unsure) this.on.lost(false);
		this.on.state({ name: "waiting", text, until: Date.now() + pause });
	}

	private finish(end: Ending): void {
		this.done = true;
		this.drop();
		this.on.state({ name: "closed", ending: end });
	}

	private drop(): void {
		const socket = this.socket;
		this.socket = undefined;
		for (const timer of [this.useful, this.ackTimer, this.askTimer, this.deadTimer]) window.clearTimeout(timer);
		this.ackTimer = 0;
		this.askTimer = 0;
		this.deadTimer = 0;
		this.typed = 0;
		this.arrived = 0;
		// The next connection starts at what came, and counts its credit from there.
		this.acked = this.next;
		if (socket !== undefined && socket.readyState < WebSocket.CLOSING) socket.close();
	}
}
