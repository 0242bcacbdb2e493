// The browser's terminal: xterm.js over sandgate.term.v1 (docs/terminal.md). It is a chunk of its own: import it when a
// terminal is opened. Packages: @xterm/xterm 6.0.0 with its css, addon-fit 0.11.0, addon-search 0.16.0,
// addon-unicode-graphemes 0.4.0, addon-web-links 0.12.0, addon-webgl 0.19.0. Style: static/css/terminal.css.
import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { UnicodeGraphemesAddon } from "@xterm/addon-unicode-graphemes";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { WebglAddon } from "@xterm/addon-webgl";
import { Terminal } from "@xterm/xterm";
import { Link, type LinkState } from "./link";
import { fontSize, memory, onThemeChange, theme } from "./look";
import { ask, Bar, button, element, Find } from "./page";
import { type Ending, exitText, latin1, type Role, type ServerFrame } from "./protocol";
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
	dispose(): void;
};

/** The element that mount was given. terminalText is for browser tests: the screen and its scrollback as text. */
export type TerminalElement = HTMLElement & { terminalText?: () => string };

/**
 * Puts a terminal into el and connects it. el gets data-state (connecting, connected, reconnecting, exited, closed) and
 * data-role (driver, viewer), and these events, which bubble:
 * sandgate:terminal-title {title} (cleaned; show it as text), sandgate:terminal-state {state}, sandgate:new-terminal.
 */
export function mount(el: TerminalElement, options: Options): Handle {
	const view = new View(el, options);
	return { focus: () => view.focus(), fit: () => view.fit(), dispose: () => view.dispose() };
}

const leaveHint = "Ctrl+Shift+L leaves the terminal";

class View {
	private readonly term: Terminal;
	private readonly fitter = new FitAddon();
	private readonly bar: Bar;
	private readonly find: Find;
	private readonly screen: HTMLElement;
	private readonly link: Link;
	private readonly stop = new AbortController();
	private readonly findButton: HTMLButtonElement;
	private readonly readerButton: HTMLButtonElement;
	private gl: WebglAddon | undefined;
	private glBroken = false;
	private decoder = new TextDecoder("utf-8", { ignoreBOM: true });
	private role: Role = "viewer";
	private driver = "";
	private state = "connecting";
	private muted = 0; // snapshots that are being painted: what they make xterm say is no input
	private size = ""; // the terminal's, or the one last asked for
	private fitTimer = 0;
	private titleTimer = 0;
	private exit = "";
	private lastDown: KeyboardEvent | undefined;

	constructor(
		private readonly el: TerminalElement,
		private readonly o: Options,
	) {
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
			theme: theme(),
		});
		const search = new SearchAddon();
		this.term.loadAddon(this.fitter);
		this.term.loadAddon(search);
		this.term.loadAddon(new UnicodeGraphemesAddon());
		this.term.loadAddon(new WebLinksAddon((_e, uri) => void this.follow(uri)));

		this.findButton = button("Find", "Find (Ctrl+Shift+F)", () => this.find.open());
		this.readerButton = button("Reader", "Screen reader mode", () => this.toggleReader());
		this.readerButton.setAttribute("aria-pressed", String(this.term.options.screenReaderMode === true));
		const tools = element(
			"span",
			{ class: "tty-tools" },
			element("span", { class: "tty-hint" }, leaveHint),
			this.findButton,
			button("A−", "Smaller text (Ctrl+Shift+↓)", () => this.zoom(-1)),
			button("A+", "Larger text (Ctrl+Shift+↑)", () => this.zoom(1)),
			this.readerButton,
		);
		this.bar = new Bar(tools);
		this.find = new Find(search, () => this.term.focus());
		this.screen = element("div", { class: "tty-screen", role: "group", "aria-label": `${o.name}. ${leaveHint}.` });
		el.classList.add("tty");
		el.replaceChildren(this.find.root, this.screen, this.bar.root);
		el.terminalText = () => this.text();
		this.term.open(this.screen);
		this.term.textarea?.setAttribute("aria-label", o.name);
		this.listen();
		this.link = new Link(o.url, {
			state: (s) => this.stateChanged(s),
			output: (bytes, done) => this.term.write(this.decoder.decode(bytes, { stream: true }), done),
			snapshot: (bytes, done) => this.paint(bytes, done),
			message: (f) => this.message(f),
		});
		this.fit();
	}

	focus(): void {
		this.term.focus();
	}

	dispose(): void {
		this.stop.abort();
		window.clearTimeout(this.fitTimer);
		window.clearTimeout(this.titleTimer);
		this.bar.stop();
		this.link.close();
		this.gl?.dispose();
		this.term.dispose();
		delete this.el.terminalText;
		this.el.replaceChildren();
	}

	/** Asks for the size that fits; only the driver's counts, and only while the terminal is seen. */
	fit(): void {
		window.clearTimeout(this.fitTimer);
		this.fitTimer = window.setTimeout(() => {
			const seen = this.screen.clientWidth > 0 && this.screen.clientHeight > 0;
			this.accelerate(seen);
			if (!seen || this.role !== "driver" || !this.link.connected) return;
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
		const seen = new ResizeObserver(() => this.fit());
		seen.observe(this.screen);
		signal.addEventListener("abort", () => seen.disconnect());
		void document.fonts.ready.then(() => this.fit());
		onThemeChange(() => (this.term.options.theme = theme()), signal);
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
				});
				this.term.loadAddon(gl);
				this.gl = gl;
			} catch {
				this.glBroken = true; // the DOM renderer stays
			}
		}
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
			if (
				e.type === "keydown" &&
				this.term.options.disableStdin === true &&
				e.key.length === 1 &&
				!e.ctrlKey &&
				!e.metaKey
			)
				this.whyNot();
			return true;
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

	private type(bytes: Uint8Array): void {
		if (this.role === "driver") this.link.input(bytes);
	}

	/** Says why a key did nothing. */
	private whyNot(): void {
		if (this.state === "connected")
			this.bar.flash(
				this.o.canType ? "You are watching. Take over to type." : "You may watch this terminal, not type in it.",
			);
		else if (this.state !== "exited" && this.state !== "closed") this.bar.flash("Not connected: keys are not sent.");
	}

	private async paste(text: string): Promise<void> {
		if (this.term.options.disableStdin === true) {
			this.whyNot();
			return;
		}
		const clean = cleanPaste(text);
		if (clean === "") return;
		if (new TextEncoder().encode(clean).length > maxPaste) {
			this.bar.flash("That is more than 1 MiB. Upload it as a file instead.");
			return;
		}
		const question = pasteQuestion(clean, this.term.modes.bracketedPasteMode);
		if (question !== undefined && !(await ask(this.el, "Paste into the terminal?", question, clean, "Paste"))) {
			this.term.focus();
			return;
		}
		// The mode may have changed while the person was asked.
		this.type(pasteBytes(clean, this.term.modes.bracketedPasteMode));
		this.term.scrollToBottom();
		this.term.focus();
	}

	private async copy(): Promise<void> {
		const text = this.term.getSelection();
		if (text === "") return;
		try {
			await navigator.clipboard.writeText(text);
			this.bar.flash("Copied.");
		} catch {
			this.bar.flash("The browser did not let the selection be copied.");
		}
	}

	private async follow(uri: string): Promise<void> {
		const safe = safeLink(uri);
		if (safe === undefined) {
			this.bar.flash("Only http and https links open.");
		} else if (
			await ask(this.el, "Open this link?", "It was printed in the sandbox. It opens in a new tab.", safe, "Open")
		) {
			window.open(safe, "_blank", "noopener,noreferrer");
		}
	}

	private zoom(by: number): void {
		const size = Math.min(32, Math.max(8, (this.term.options.fontSize ?? 13) + by));
		this.term.options.fontSize = size;
		memory.set("font", String(size));
		this.fit();
	}

	private toggleReader(): void {
		const on = this.term.options.screenReaderMode !== true;
		this.term.options.screenReaderMode = on;
		this.readerButton.setAttribute("aria-pressed", String(on));
		memory.set("reader", on ? "on" : "");
	}

	private paint(bytes: Uint8Array, done: () => void): void {
		this.muted++;
		this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
		this.term.write(new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes), () => {
			this.muted--;
			done();
		});
	}

	private message(f: Exclude<ServerFrame, { kind: "output" | "snapshot" }>): void {
		switch (f.kind) {
			case "hello":
				this.resized(f.cols, f.rows);
				this.setRole(f.role, f.driver);
				break;
			case "size":
				this.resized(f.cols, f.rows);
				break;
			case "role":
				this.setRole(f.role, f.driver);
				break;
			case "notice":
				this.bar.flash(cleanTitle(f.text));
				if (f.code === "input_full") this.offerInterrupt();
				break;
			case "exit":
				this.exit = exitText(f.code, cleanTitle(f.signal));
		}
	}

	/** Takes a size in order with what is painted: bytes that wait were laid out for the size before. */
	private resized(cols: number, rows: number): void {
		if (cols < 2 || rows < 1 || cols > 500 || rows > 300) return;
		this.size = `${cols}x${rows}`;
		this.term.write("", () => {
			if (this.term.cols !== cols || this.term.rows !== rows) this.term.resize(cols, rows);
		});
	}

	private setRole(role: Role, driver: string): void {
		this.role = role;
		this.driver = cleanTitle(driver);
		this.el.dataset.role = role;
		this.term.options.disableStdin = role !== "driver";
		this.showConnected();
		if (role === "driver") this.fit();
	}

	private showConnected(): void {
		if (this.role === "driver") {
			this.bar.show("", "Connected");
			return;
		}
		const who = this.driver === "" ? "nobody drives" : `${this.driver} drives`;
		const takeOver = button("Take over", "Type here from now on; whoever drives will watch", () => {
			this.link.send({ type: "take_control" });
			this.term.focus();
		});
		this.bar.show("", `Watching — ${who}`, this.o.canType ? [takeOver] : []);
	}

	private offerInterrupt(): void {
		if (this.role !== "driver") return;
		this.bar.show("warn", "The program does not read what you type.", [
			button("Interrupt", "Send SIGINT, past what is waiting", () => {
				this.link.send({ type: "signal", name: "INT" });
				this.showConnected();
				this.term.focus();
			}),
		]);
	}

	private stateChanged(s: LinkState): void {
		switch (s.name) {
			case "connecting":
				if (this.state !== "reconnecting") this.setState("connecting");
				this.bar.show(
					this.state === "reconnecting" ? "warn" : "",
					this.state === "reconnecting" ? "Reconnecting…" : "Connecting…",
				);
				break;
			case "connected":
				this.setState("connected");
				break;
			case "waiting":
				this.term.options.disableStdin = true;
				this.setState("reconnecting");
				this.bar.show("warn", s.text, [button("Try now", "", () => this.link.retry())], s.until);
				break;
			case "closed":
				this.term.options.disableStdin = true;
				if (this.exit !== "") {
					this.setState("exited");
					this.bar.show("", this.exit, this.offers({ final: true, text: "", offer: "new" }));
				} else {
					this.setState("closed");
					this.bar.show("bad", cleanTitle(s.ending.text), this.offers(s.ending));
				}
		}
	}

	private offers(e: Ending): HTMLElement[] {
		switch (e.offer) {
			case "new":
				return this.o.canType ? [button("New shell", "", () => this.tell("new-terminal", {}))] : [];
			case "sign-in": {
				const back = encodeURIComponent(location.pathname + location.search);
				return [element("a", { class: "tty-btn", href: this.o.signIn ?? `/sign-in?next=${back}` }, "Sign in again")];
			}
			case "watch":
				return [button("Watch it", "", () => this.link.retry())];
			case "again":
				return [button("Try again", "", () => this.link.retry())];
			default:
				return [];
		}
	}

	private setState(state: string): void {
		this.state = state;
		this.el.dataset.state = state;
		this.tell("terminal-state", { state });
	}

	private tell(name: string, detail: Record<string, string>): void {
		this.el.dispatchEvent(new CustomEvent(`sandgate:${name}`, { bubbles: true, detail }));
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
