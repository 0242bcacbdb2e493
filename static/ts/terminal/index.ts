// The browser's terminal: xterm.js over sandgate.term.v1 (docs/terminal.md). It is a chunk of its own: import it when a
// terminal is opened. Packages: @xterm/xterm 6.0.0 with its css, addon-fit 0.11.0, addon-search 0.16.0,
// addon-unicode-graphemes 0.4.0, addon-web-links 0.12.0, addon-webgl 0.19.0. Style: static/css/terminal.css.
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { UnicodeGraphemesAddon } from "@xterm/addon-unicode-graphemes";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { WebglAddon } from "@xterm/addon-webgl";
import { Terminal } from "@xterm/xterm";
import { copyText } from "../dom";
import { Clipboard } from "./clipboard";
import { Link } from "./link";
import { fontSize, lookChanged, memory, onLookChange, onThemeChange, theme } from "./look";
import { ask, Bar, button, element, Find, Fold } from "./page";
import { latin1 } from "./protocol";
import { Status } from "./status";
import { cleanPaste, cleanTitle, isReply, maxPaste, pasteBytes, pasteQuestion, safeLink } from "./text";

export type Options = {
	/** Address of the terminal's websocket, e.g. "/w/…/ptys/pty…/ws"; http(s) becomes ws(s). */
	url: string;
	/** The person may type, if nobody else drives. */
	canType: boolean;
	/** What the terminal is called, e.g. "Terminal 2". */
	name: string;
	/** Where one signs in again; default "/sign-in" back to this page. */
	signIn?: string;
};

export type Handle = {
	focus(): void;
	/** Fits the terminal into its place; call it when the pane is shown. It is called by itself when sizes change. */
	fit(): void;
	/** Says something in the bar for a few seconds. */
	say(text: string): void;
	/** Shows in the bar how something goes on; part is from 0 to 1, undefined ends it. */
	progress(text: string, part?: number): void;
	/** Asks the person; text is shown as what it is. */
	ask(title: string, why: string, text: string, yes: string): Promise<boolean>;
	/** Says that the terminal is called something else now. */
	rename(name: string): void;
	dispose(): void;
};

/** The element that mount was given. What it carries is for browser tests: the screen, with its scrollback or without. */
export type TerminalElement = HTMLElement & {
	terminalText?: () => string;
	terminalScreen?: () => string[];
	/** "ROWS COLS", as stty says it. */
	terminalSize?: () => string;
};

/**
 * Puts a terminal into el and connects it. el gets data-state (connecting, connected, reconnecting, exited, closed) and
 * data-role (driver, viewer), and these events, which bubble:
 * sandgate:terminal-title {title} (cleaned; show it as text), sandgate:terminal-state {state}, sandgate:new-terminal.
 */
export function mount(el: TerminalElement, options: Options): Handle {
	const view = new View(el, options);
	return {
		focus: () => view.focus(),
		fit: () => view.fit(),
		say: (text) => view.say(text),
		progress: (text, part) => view.progress(text, part),
		ask: (title, why, text, yes) => ask(el, title, why, text, yes),
		rename: (name) => view.named(name),
		dispose: () => view.dispose(),
	};
}

const leaveHint = "Ctrl+Shift+L: leave";

class View {
	private readonly term: Terminal;
	private readonly fitter = new FitAddon();
	private readonly bar: Bar;
	private readonly find: Find;
	private readonly screen: HTMLElement;
	private readonly link: Link;
	private readonly status: Status;
	private readonly clipboard: Clipboard;
	private readonly stop = new AbortController();
	private readonly findButton: HTMLButtonElement;
	private readonly readerButton: HTMLButtonElement;
	private readonly lightButton: HTMLButtonElement;
	private gl: WebglAddon | undefined;
	private glBroken = false;
	private decoder = new TextDecoder("utf-8", { ignoreBOM: true });
	private muted = 0; // snapshots that are being painted: what they make xterm say is no input
	private stale = 0; // what is being painted was printed before this page was connected
	private size = ""; // the terminal's, or the one last asked for
	private fitTimer = 0;
	private titleTimer = 0;
	private showing = 0;
	private lastDown: KeyboardEvent | undefined;

	constructor(
		private readonly el: TerminalElement,
		o: Options,
	) {
		el.classList.add("tty");
		el.dataset.look = memory.get("look");
		this.term = new Terminal({
			allowProposedApi: true, // the width tables need it
			cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
			disableStdin: true,
			fontFamily:
				getComputedStyle(document.documentElement).getPropertyValue("--mono").trim() ||
				'ui-monospace, "SF Mono", "JetBrains Mono", "DejaVu Sans Mono", monospace',
			fontSize: fontSize(),
			linkHandler: { activate: (_e, uri) => void this.follow(uri) },
			minimumContrastRatio: 4.5,
			screenReaderMode: memory.get("reader") === "on",
			scrollback: 5000,
			theme: theme(el),
		});
		const search = new SearchAddon();
		this.term.loadAddon(this.fitter);
		this.term.loadAddon(search);
		this.term.loadAddon(new UnicodeGraphemesAddon());
		this.term.loadAddon(new WebLinksAddon((_e, uri) => void this.follow(uri)));

		this.findButton = button("Find", "Find (Ctrl+Shift+F)", () => this.find.open());
		this.lightButton = button("Light terminal", "", () => this.toggleLight());
		this.readerButton = button("Screen reader mode", "", () => this.toggleReader());
		const view = new Fold("tty-view");
		view.fill("View", [
			button("Smaller text", "Ctrl+Shift+↓", () => this.zoom(-1)),
			button("Larger text", "Ctrl+Shift+↑", () => this.zoom(1)),
			this.lightButton,
			this.readerButton,
		]);
		const tools = element(
			"span",
			{ class: "tty-tools" },
			element("span", { class: "tty-hint" }, leaveHint),
			this.findButton,
			view.root,
		);
		this.clipboard = new Clipboard({
			may: () => this.muted === 0 && this.stale === 0 && this.status.role === "driver" && document.hasFocus(),
			say: (text) => this.say(text),
			changed: () => this.status.show(),
		});
		this.status = new Status(
			{
				el,
				canType: o.canType,
				signIn: o.signIn,
				send: (m) => this.link.send(m),
				retry: () => this.link.retry(),
				focus: () => this.focus(),
				typing: (may) => (this.term.options.disableStdin = !may),
				driving: () => {
					this.size = ""; // what was asked for before may not have been heard
					this.fit();
				},
				size: (cols, rows) => this.resized(cols, rows),
			},
			() => this.bar,
			() => this.clipboard,
		);
		this.bar = new Bar(this.status.people.root, tools);
		this.find = new Find(search, () => this.focus());
		this.screen = element("div", { class: "tty-screen", role: "group" });
		el.replaceChildren(this.find.root, this.screen, this.bar.root);
		el.terminalText = () => this.text();
		el.terminalSize = () => `${this.term.rows} ${this.term.cols}`;
		el.terminalScreen = () => this.lines(this.term.buffer.active.baseY, this.term.rows);
		this.term.open(this.screen);
		this.named(o.name);
		this.showLook();
		this.listen();
		this.link = new Link(o.url, {
			state: (s) => this.status.stateChanged(s),
			output: (bytes, live, done) => this.write(bytes, live, done),
			snapshot: (bytes, done) => this.paint(bytes, done),
			message: (f) => this.status.message(f),
			lost: (rest) => this.status.lost(rest),
		});
		this.fit();
	}

	focus(): void {
		this.term.focus();
	}

	say(text: string): void {
		this.bar.flash(text);
	}

	progress(text: string, part?: number): void {
		this.bar.progress(text, part);
	}

	/** Tells what the terminal is called to who does not see its tab. */
	named(name: string): void {
		this.screen.setAttribute("aria-label", `${name}. Ctrl+Shift+L leaves the terminal.`);
		this.term.textarea?.setAttribute("aria-label", name);
	}

	dispose(): void {
		this.stop.abort();
		window.clearTimeout(this.fitTimer);
		window.clearTimeout(this.titleTimer);
		cancelAnimationFrame(this.showing);
		this.bar.stop();
		this.link.close();
		this.gl?.dispose();
		this.term.dispose();
		delete this.el.terminalText;
		delete this.el.terminalScreen;
		delete this.el.terminalSize;
		this.el.replaceChildren();
	}

	/** Asks for the size that fits; only the driver's counts, and only while the terminal is seen. */
	fit(): void {
		window.clearTimeout(this.fitTimer);
		this.fitTimer = window.setTimeout(() => {
			const shown = this.screen.clientWidth > 0 && this.screen.clientHeight > 0;
			const seen = shown && document.visibilityState === "visible";
			this.accelerate(shown);
			if (!seen || this.status.role !== "driver" || !this.link.connected) return;
			const size = this.fitter.proposeDimensions();
			if (size === undefined || !(size.cols >= 2) || !(size.rows >= 1)) return;
			const wanted = `${size.cols}x${size.rows}`;
			if (wanted === this.size) return;
			this.size = wanted;
			// The terminal itself changes when the server says so, in order with the output.
			this.link.send({ type: "resize", cols: size.cols, rows: size.rows });
		}, 80);
	}

	private listen(): void {
		const { signal } = this.stop;
		this.term.onData((data) => {
			if (this.muted === 0 || !isReply(data)) this.type(new TextEncoder().encode(data));
		});
		this.term.onBinary((data) => this.type(latin1(data)));
		this.term.onTitleChange((title) => {
			window.clearTimeout(this.titleTimer);
			this.titleTimer = window.setTimeout(() => this.tell("terminal-title", { title: cleanTitle(title) }), 200);
		});
		this.term.parser.registerOscHandler(52, (data) => {
			this.clipboard.take(data);
			return true;
		});
		this.term.onCursorMove(() => this.showCursor());
		this.term.attachCustomKeyEventHandler((e) => this.key(e));
		// Every way of pasting ends here, before xterm sees it.
		this.screen.addEventListener(
			"paste",
			(e) => {
				e.preventDefault();
				e.stopPropagation();
				void this.paste(e.clipboardData?.getData("text/plain") ?? "");
			},
			{ capture: true, signal },
		);
		const seen = new ResizeObserver(() => {
			this.fit();
			this.showCursor();
		});
		seen.observe(this.screen);
		signal.addEventListener("abort", () => seen.disconnect());
		document.addEventListener("visibilitychange", () => this.fit(), { signal });
		void document.fonts.ready.then(() => this.fit());
		onThemeChange(() => (this.term.options.theme = theme(this.el)), signal);
		onLookChange(() => this.showLook(), signal);
	}

	/** Where the terminal is larger than its place, the line with the cursor is kept in sight. */
	private showCursor(): void {
		if (this.showing !== 0) return;
		this.showing = requestAnimationFrame(() => {
			this.showing = 0;
			const place = this.screen;
			if (place.scrollHeight <= place.clientHeight + 2) return;
			const line = place.scrollHeight / this.term.rows;
			const at = this.term.buffer.active.cursorY * line;
			if (at < place.scrollTop || at + 2 * line > place.scrollTop + place.clientHeight)
				place.scrollTop = at + 2 * line - place.clientHeight;
		});
	}

	/** Draws by WebGL while seen: browsers grant only a few contexts, so a hidden terminal gives its own back. */
	private accelerate(seen: boolean): void {
		if (!seen) {
			this.gl?.dispose();
			this.gl = undefined;
		} else if (this.gl === undefined && !this.glBroken) {
			try {
				const gl = new WebglAddon();
				gl.onContextLoss(() => {
					this.glBroken = true;
					gl.dispose();
					this.gl = undefined;
					this.el.dataset.renderer = "dom";
				});
				this.term.loadAddon(gl);
				this.gl = gl;
			} catch {
				this.glBroken = true; // the DOM renderer stays
			}
		}
		this.el.dataset.renderer = this.gl === undefined ? "dom" : "webgl";
	}

	/** Our keys; xterm gets the rest. */
	private key(e: KeyboardEvent): boolean {
		if (e.type === "keydown") this.lastDown = e;
		if (e.type === "keypress" && this.lastDown?.defaultPrevented === true) {
			// A browser sends no character for a key that was handled, but tools that type for people do: it would count twice.
			e.preventDefault();
			return false;
		}
		const chord = e.ctrlKey && e.shiftKey && !e.altKey && !e.metaKey;
		if (!chord) {
			return !(e.type === "keydown" && this.term.options.disableStdin === true && this.refusedKey(e));
		}
		const act: Record<string, () => void> = {
			f: () => this.find.open(),
			l: () => this.findButton.focus(),
			c: () => void this.copy(),
			arrowup: () => this.zoom(1),
			arrowdown: () => this.zoom(-1),
		};
		// By the letter, or by the key's place where the keyboard has no Latin letters.
		const name = (/^[a-z]$|^arrow/i.test(e.key) ? e.key : e.code.replace(/^Key/, "")).toLowerCase();
		const go = act[name];
		if (go === undefined) return name !== "v"; // the browser pastes on Ctrl+Shift+V by itself
		e.preventDefault();
		if (e.type === "keydown") go();
		return false;
	}

	/** A key while this page does not type. One's own other window gives way at once; everybody else is asked. True: done with. */
	private refusedKey(e: KeyboardEvent): boolean {
		if (e.ctrlKey || e.metaKey || (e.key.length !== 1 && e.key !== "Enter")) return false;
		if (!this.status.drivesElsewhere || this.status.state !== "connected") {
			this.status.whyNot();
			return false;
		}
		e.preventDefault();
		this.status.takeOver();
		this.link.input(new TextEncoder().encode(e.key === "Enter" ? "\r" : e.key));
		return true;
	}

	private type(bytes: Uint8Array): void {
		if (this.status.role === "driver") this.link.input(bytes);
	}

	private async paste(text: string): Promise<void> {
		if (this.term.options.disableStdin === true) {
			this.status.whyNot();
			return;
		}
		const clean = cleanPaste(text);
		if (clean === "") return;
		if (new TextEncoder().encode(clean).length > maxPaste) {
			this.say("That is more than 1 MiB. Drop it here as a file instead.");
			return;
		}
		const question = pasteQuestion(clean, this.term.modes.bracketedPasteMode);
		if (question !== undefined && !(await ask(this.el, "Paste into the terminal?", question, clean, "Paste"))) {
			this.focus();
			return;
		}
		// The mode may have changed while the person was asked.
		this.type(pasteBytes(clean, this.term.modes.bracketedPasteMode));
		this.term.scrollToBottom();
		this.focus();
	}

	private async copy(): Promise<void> {
		const text = this.term.getSelection();
		if (text === "") this.say("Nothing is selected.");
		else if (await copyText(text)) this.say("Copied.");
		else this.say("The browser did not let the selection be copied.");
	}

	private async follow(uri: string): Promise<void> {
		const safe = safeLink(uri);
		if (safe === undefined) {
			this.say("Only http and https links open.");
		} else if (
			await ask(this.el, "Open this link?", "It was printed in the sandbox. It opens in a new tab.", safe, "Open")
		) {
			window.open(safe, "_blank", "noopener,noreferrer");
		}
	}

	private zoom(by: number): void {
		memory.set("font", String(Math.min(32, Math.max(8, fontSize() + by))));
		lookChanged();
	}

	private toggleReader(): void {
		memory.set("reader", memory.get("reader") === "on" ? "" : "on");
		lookChanged();
	}

	private toggleLight(): void {
		memory.set("look", memory.get("look") === "light" ? "" : "light");
		lookChanged();
	}

	/** Takes over what is remembered about looks. */
	private showLook(): void {
		const reader = memory.get("reader") === "on";
		const light = memory.get("look") === "light";
		this.el.dataset.look = light ? "light" : "";
		this.readerButton.setAttribute("aria-pressed", String(reader));
		this.lightButton.setAttribute("aria-pressed", String(light));
		this.term.options.screenReaderMode = reader;
		this.term.options.fontSize = fontSize();
		this.term.options.theme = theme(this.el);
		this.fit();
	}

	private write(bytes: Uint8Array, live: boolean, done: () => void): void {
		if (!live) this.stale++;
		this.term.write(this.decoder.decode(bytes, { stream: true }), () => {
			if (!live) this.stale--;
			done();
		});
	}

	private paint(bytes: Uint8Array, done: () => void): void {
		this.muted++;
		this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
		this.term.write(new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes), () => {
			this.muted--;
			done();
		});
	}

	/** Takes a size in order with what is painted: bytes that wait were laid out for the size before. */
	private resized(cols: number, rows: number): void {
		if (cols < 2 || rows < 1 || cols > 500 || rows > 300) return;
		this.size = `${cols}x${rows}`;
		this.term.write("", () => {
			if (this.term.cols !== cols || this.term.rows !== rows) this.term.resize(cols, rows);
		});
	}

	private tell(name: string, detail: Record<string, string>): void {
		this.el.dispatchEvent(new CustomEvent(`sandgate:${name}`, { bubbles: true, detail }));
	}

	/** Lines of the buffer as one sees them: behind its width it may keep what was there when it was wider. */
	private lines(from: number, count: number): string[] {
		const buffer = this.term.buffer.active;
		return Array.from(
			{ length: count },
			(_, i) => buffer.getLine(from + i)?.translateToString(true, 0, this.term.cols) ?? "",
		);
	}

	private text(): string {
		const buffer = this.term.buffer.active;
		const lines: string[] = [];
		for (let i = 0; i < buffer.length; i++) {
			const line = buffer.getLine(i);
			if (line === undefined) continue;
			// A wrapped line goes on where the one above ended.
			if (line.isWrapped && lines.length > 0) lines[lines.length - 1] += line.translateToString(true);
			else lines.push(line.translateToString(true));
		}
		return lines.join("\n").replace(/\n+$/, "\n");
	}
}
