// Small pieces of the page around a terminal: elements, the bar below it, questions, the search box.
import type { SearchAddon } from "@xterm/addon-search";
import { visible } from "./text";

type Attributes = Record<string, string>;

export function element<K extends keyof HTMLElementTagNameMap>(
	tag: K,
	attributes: Attributes,
	...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
	const e = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
	e.append(...children);
	return e;
}

export function button(text: string, title: string, act: () => void): HTMLButtonElement {
	const b = element("button", { type: "button", class: "tty-btn" }, text);
	if (title !== "") {
		b.title = title;
		if (text.length < 3) b.setAttribute("aria-label", `${text} ${title}`);
	}
	b.addEventListener("click", act);
	return b;
}

/** The bar says how things stand, outside the terminal's own bytes, and offers what can be done about it. */
export class Bar {
	readonly root: HTMLElement;
	private readonly said = element("span", { class: "tty-said", role: "status", "aria-live": "polite" });
	private readonly count = element("span", { class: "tty-count", "aria-hidden": "true" });
	private readonly acts = element("span", { class: "tty-acts" });
	private readonly rec = element("span", { class: "tty-rec", role: "status", hidden: "" });
	private readonly task = element("span", { class: "tty-task" });
	private ticking = 0;
	private flashing = 0;
	private text = "";

	constructor(people: HTMLElement, tools: HTMLElement) {
		const news = element("span", { class: "tty-news" }, this.rec, this.said, this.count, this.acts, people, this.task);
		this.root = element("div", { class: "tty-bar" }, news, tools);
	}

	/** Shows a state. A changed text is read out once; the seconds of until are only seen. */
	show(tone: "" | "ask" | "done" | "warn" | "bad", text: string, acts: HTMLElement[] = [], until = 0): void {
		window.clearInterval(this.ticking);
		if (tone !== "") this.unflash();
		this.root.dataset.tone = tone;
		this.say(text);
		// What has the focus and stays keeps it.
		const had = this.acts.contains(document.activeElement) ? document.activeElement?.textContent : undefined;
		this.acts.replaceChildren(...acts);
		if (had) acts.find((a) => a.textContent === had)?.focus();
		this.count.textContent = "";
		if (until === 0) return;
		const tick = (): void => {
			this.count.textContent = `Trying again in ${Math.max(1, Math.ceil((until - Date.now()) / 1000))} s`;
		};
		tick();
		this.ticking = window.setInterval(tick, 500);
	}

	/** Says that what happens here is recorded. */
	recorded(on: boolean): void {
		this.rec.hidden = !on;
		this.rec.textContent = on ? "This terminal is recorded" : "";
	}

	/** Shows something for a few seconds, then what was there before. */
	flash(text: string): void {
		window.clearTimeout(this.flashing);
		this.said.textContent = text;
		this.flashing = window.setTimeout(() => this.unflash(), 6000);
	}

	/** Shows how something goes on that takes a while; part is from 0 to 1, undefined ends it. */
	progress(text: string, part?: number): void {
		if (part === undefined) {
			this.task.replaceChildren();
			return;
		}
		const meter = element("progress", { max: "1", value: String(part), "aria-label": text });
		this.task.replaceChildren(text, meter);
	}

	private unflash(): void {
		window.clearTimeout(this.flashing);
		this.flashing = 0;
		this.said.textContent = this.text;
	}

	stop(): void {
		window.clearInterval(this.ticking);
		window.clearTimeout(this.flashing);
	}

	private say(text: string): void {
		this.text = text;
		if (this.flashing === 0 && this.said.textContent !== text) this.said.textContent = text;
	}
}

/** A list that is folded away until it is wanted. Escape, or leaving it, folds it again. */
export class Fold {
	readonly root: HTMLDetailsElement;
	private readonly summary = element("summary", { class: "tty-btn" });
	private readonly list = element("ul", {});

	constructor(kind: string) {
		this.root = element("details", { class: `tty-fold ${kind}` }, this.summary, this.list);
		this.root.addEventListener("keydown", (e) => {
			if (e.key !== "Escape" || !this.root.open) return;
			e.preventDefault();
			this.root.open = false;
			this.summary.focus();
		});
		this.root.addEventListener("focusout", (e) => {
			if (!(e.relatedTarget instanceof Node && this.root.contains(e.relatedTarget))) this.root.open = false;
		});
	}

	fill(title: string, lines: HTMLElement[]): void {
		this.summary.textContent = title;
		this.list.replaceChildren(...lines.map((line) => element("li", {}, line)));
	}
}

/** Asks before something happens; the text is shown with its controls visible and never as markup. */
export function ask(host: HTMLElement, title: string, why: string, text: string, yes: string): Promise<boolean> {
	const shown = text.length > 4000 ? `${text.slice(0, 4000)}…` : text;
	const cancel = element("button", { class: "btn", value: "" }, "Cancel");
	const go = element("button", { class: "btn pri", value: "yes" }, yes);
	const dialog = element(
		"dialog",
		{ class: "box tty-ask", "aria-label": title },
		element(
			"form",
			{ method: "dialog" },
			element("h2", {}, title),
			element("p", {}, why),
			...(shown === "" ? [] : [element("pre", { tabindex: "0" }, visible(shown))]),
			element("div", { class: "tty-acts" }, cancel, go),
		),
	);
	host.append(dialog);
	dialog.showModal();
	go.focus();
	return new Promise((resolve) => {
		dialog.addEventListener("close", () => {
			resolve(dialog.returnValue === "yes");
			dialog.remove();
		});
	});
}

/** How what is found is marked; the terminal draws it, so these are no tokens of the page. */
const marks = {
	matchBackground: "#5c4a12",
	matchOverviewRuler: "#e8b94a",
	activeMatchBackground: "#a8740a",
	activeMatchColorOverviewRuler: "#e8b94a",
};

/** The search box: Enter finds further up, Shift+Enter further down, Escape closes. */
export class Find {
	readonly root: HTMLElement;
	private readonly count = element("span", { class: "tty-found", role: "status" });
	private readonly field = element("input", {
		type: "search",
		"aria-label": "Find in this terminal",
		placeholder: "Find",
		spellcheck: "false",
	});

	constructor(
		private readonly addon: SearchAddon,
		private readonly leave: () => void,
	) {
		this.root = element(
			"div",
			{ class: "tty-find", role: "search" },
			this.field,
			this.count,
			button("↑", "Find the one before (Enter)", () => this.go(true)),
			button("↓", "Find the next one (Shift+Enter)", () => this.go(false)),
			button("×", "Close the search (Escape)", () => this.close()),
		);
		this.root.hidden = true;
		addon.onDidChangeResults(({ resultIndex, resultCount }) => {
			const at = resultIndex < 0 ? "" : `${resultIndex + 1} of `;
			this.count.textContent = this.field.value === "" ? "" : resultCount === 0 ? "none" : `${at}${resultCount}`;
		});
		this.field.addEventListener("input", () => this.go(true, true));
		this.field.addEventListener("keydown", (e) => {
			if (e.key === "Enter") this.go(!e.shiftKey);
			else if (e.key === "Escape") this.close();
			else return;
			e.preventDefault();
		});
	}

	open(): void {
		this.root.hidden = false;
		this.field.focus();
		this.field.select();
	}

	private go(up: boolean, grows = false): void {
		const options = { incremental: grows, decorations: marks };
		let found = true;
		if (this.field.value === "") {
			this.addon.clearDecorations();
			this.count.textContent = "";
		} else {
			found = up ? this.addon.findPrevious(this.field.value, options) : this.addon.findNext(this.field.value, options);
		}
		this.field.setAttribute("aria-invalid", String(!found));
	}

	private close(): void {
		this.root.hidden = true;
		this.addon.clearDecorations();
		this.leave();
	}
}
