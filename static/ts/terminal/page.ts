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
	private ticking = 0;
	private flashing = 0;
	private text = "";

	constructor(tools: HTMLElement) {
		this.root = element("div", { class: "tty-bar" }, this.said, this.count, this.acts, tools);
	}

	/** Shows a state. A changed text is read out once; the seconds of until are only seen. */
	show(tone: "" | "warn" | "bad", text: string, acts: HTMLElement[] = [], until = 0): void {
		window.clearInterval(this.ticking);
		window.clearTimeout(this.flashing);
		this.root.dataset.tone = tone;
		this.say(text);
		this.acts.replaceChildren(...acts);
		this.count.textContent = "";
		if (until === 0) return;
		const tick = (): void => {
			this.count.textContent = `Trying again in ${Math.max(1, Math.ceil((until - Date.now()) / 1000))} s`;
		};
		tick();
		this.ticking = window.setInterval(tick, 500);
	}

	/** Shows something for a few seconds, then what was there before. */
	flash(text: string): void {
		window.clearTimeout(this.flashing);
		this.said.textContent = text;
		this.flashing = window.setTimeout(() => (this.said.textContent = this.text), 6000);
	}

	stop(): void {
		window.clearInterval(this.ticking);
		window.clearTimeout(this.flashing);
	}

	private say(text: string): void {
		this.text = text;
		if (this.said.textContent !== text) this.said.textContent = text;
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
			element("pre", { tabindex: "0" }, visible(shown)),
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

/** The search box: Enter finds further up, Shift+Enter further down, Escape closes. */
export class Find {
	readonly root: HTMLElement;
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
			button("↑", "Find the one before (Enter)", () => this.go(true)),
			button("↓", "Find the next one (Shift+Enter)", () => this.go(false)),
			button("×", "Close the search (Escape)", () => this.close()),
		);
		this.root.hidden = true;
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

	private go(up: boolean): void {
		const found =
			this.field.value === "" ||
			(up ? this.addon.findPrevious(this.field.value) : this.addon.findNext(this.field.value));
		this.field.setAttribute("aria-invalid", String(!found));
	}

	private close(): void {
		this.root.hidden = true;
		this.addon.clearDecorations();
		this.leave();
	}
}
