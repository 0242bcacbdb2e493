// The tabs above the terminal: each terminal has one, and the preview. The terminal itself is a chunk of its own, loaded
// when the first one is shown.
import { openDialog } from "./dialog";
import { all, find, icon, on, reason, toast, toSignIn } from "./dom";
import { takeDrops } from "./drop";
import type { Handle } from "./terminal";

interface Pty {
	id: string;
	name: string;
	status: string;
	/** Who else is at it, short and in words; both empty for nobody. */
	others: string;
	people: string;
}

interface Shown {
	pane: HTMLElement;
	handle: Handle | null; // null while its code is on the way
}

const shown = new Map<string, Shown>();
/** Closed here a moment ago: the live list may still hold them. */
const closed = new Set<string>();
let page: HTMLElement | null = null;
let opening = false;

const canRun = (): boolean => !!page?.hasAttribute("data-can-run");
const base = (): string => page?.dataset.sandbox ?? "";
const tabOf = (id: string): HTMLElement | null => find(`.tab[data-pty="${CSS.escape(id)}"]`);

/** Shows one pane: a terminal's by id, "preview", or "" for the hint that there is none. */
function show(which: string, focus = true): void {
	for (const [id, s] of shown) s.pane.hidden = id !== which;
	remember(which);
	const preview = find("#preview");
	const none = find("#no-terminal");
	if (preview) preview.hidden = which !== "preview";
	if (none) none.hidden = which !== "";
	for (const tab of all(".tabs .tab")) {
		const button = find("[data-tab]", tab);
		const is = which === (tab.dataset.pty ?? "preview");
		button?.setAttribute("aria-pressed", String(is));
	}
	const s = shown.get(which);
	s?.handle?.fit();
	if (focus) s?.handle?.focus();
}

/** Shows the terminal that the address names, or that was shown last, or any; else the hint. */
function showAny(focus = false): void {
	const ids = all(".tab[data-pty]").map((tab) => tab.dataset.pty ?? "");
	const wanted = [location.hash.slice(1), remembered()].find((id) => ids.includes(id)) ?? ids.at(-1);
	if (wanted) void showTerminal(wanted, focus);
	else show("", focus);
}

const key = (): string => `sandgate.shown.${base()}`;

/** Keeps which terminal is shown: in the address, so that a link leads to it, and for the next time. */
function remember(which: string): void {
	if (!which.startsWith("pty")) return;
	if (location.hash !== `#${which}` && location.hash !== "#sdk") history.replaceState(history.state, "", `#${which}`);
	try {
		sessionStorage.setItem(key(), which);
	} catch {
		// not remembered
	}
}

function remembered(): string {
	try {
		return sessionStorage.getItem(key()) ?? "";
	} catch {
		return "";
	}
}

async function showTerminal(id: string, focus = true): Promise<void> {
	if (!shown.has(id)) {
		const pane = document.createElement("div");
		pane.className = "pane term";
		const place = document.createElement("div");
		pane.append(place);
		find("[data-panes]")?.append(pane);
		const entry: Shown = { pane, handle: null };
		shown.set(id, entry);
		show(id, false);
		try {
			const terminal = await import("./terminal");
			const name = nameOf(tabOf(id));
			entry.handle = terminal.mount(place, { url: `${base()}/ptys/${id}/ws`, canType: canRun(), name });
			if (canRun()) takeDrops({ pane, base: base(), id, handle: () => entry.handle });
		} catch {
			shown.delete(id);
			pane.remove();
			toast("The terminal could not be loaded. Reload the page.", "bad");
			return;
		}
		pane.addEventListener("sandgate:new-terminal", () => void open());
		pane.addEventListener("sandgate:terminal-title", (e) => {
			const tab = tabOf(id);
			if (tab) tab.dataset.title = e instanceof CustomEvent ? String(e.detail.title) : "";
			hint(tab);
		});
		pane.addEventListener("sandgate:terminal-state", (e) => {
			if (e instanceof CustomEvent && e.detail.state === "exited") tabOf(id)?.setAttribute("data-ended", "");
		});
	}
	show(id, focus);
}

/** What a terminal is called. */
function nameOf(tab: HTMLElement | null): string {
	return (tab && find("[data-tab]", tab)?.firstChild?.textContent?.trim()) || "Terminal";
}

/** What stands over a tab: who is there, and the title. A program chose that: it is a hint, never the tab's name. */
function hint(tab: HTMLElement | null): void {
	const button = tab && find("[data-tab]", tab);
	if (!tab || !button) return;
	const title = tab.dataset.title ? `“${tab.dataset.title}”` : "";
	button.title = [tab.dataset.people ?? "", title].filter(Boolean).join(" — ");
}

/** Shows another name; what was drawn with the old one is named anew. */
function rename(tab: HTMLElement, button: HTMLElement, name: string): void {
	if (button.firstChild instanceof Text) button.firstChild.data = name;
	else button.prepend(name);
	find(".pen", tab)?.setAttribute("aria-label", `Rename ${name}`);
	find("button.x", tab)?.setAttribute("aria-label", `Close ${name}`);
	shown.get(tab.dataset.pty ?? "")?.handle?.rename(name);
}

/** Brings a tab up to date with the list. */
function updateTab(tab: HTMLElement, p: Pty): void {
	tab.dataset.people = p.people ?? "";
	if (p.status === "exited") tab.setAttribute("data-ended", "");
	const button = find("[data-tab]", tab);
	if (!button) return;
	if (nameOf(tab) !== p.name) rename(tab, button, p.name);
	let who = find(".who", button);
	if (!p.others) who?.remove();
	else {
		if (!who) {
			who = document.createElement("small");
			who.className = "who";
			button.append(who);
		}
		who.textContent = p.others;
	}
	hint(tab);
}

function addTab(p: Pty): void {
	const known = tabOf(p.id);
	if (known) return updateTab(known, p);
	const tab = document.createElement("div");
	tab.className = "tab";
	tab.dataset.pty = p.id;
	const button = document.createElement("button");
	button.type = "button";
	button.dataset.tab = "";
	button.setAttribute("aria-pressed", "false");
	button.textContent = p.name;
	tab.append(button);
	if (canRun()) {
		const pen = document.createElement("a");
		pen.className = "x pen";
		pen.href = `${base()}/ptys/${p.id}/rename`;
		pen.dataset.dialog = "";
		pen.title = "Rename (F2, or double click the name)";
		pen.setAttribute("aria-label", `Rename ${p.name}`);
		pen.append(icon("pencil"));
		tab.append(pen);
		const x = document.createElement("button");
		x.type = "button";
		x.className = "x";
		x.dataset.closePtyButton = p.id;
		x.setAttribute("aria-label", `Close ${button.textContent}`);
		x.append(icon("x"));
		tab.append(x);
	}
	const bar = find("[data-tabs]");
	bar?.insertBefore(tab, find(".add, #preview-tab", bar));
	updateTab(tab, p);
}

function forget(id: string): void {
	const s = shown.get(id);
	const wasSeen = !!s && !s.pane.hidden;
	s?.handle?.dispose();
	s?.pane.remove();
	shown.delete(id);
	tabOf(id)?.remove();
	if (wasSeen) showAny();
}

/** About how many characters fit, so that the shell's first prompt is drawn right. The terminal corrects it. */
function room(): { cols: number; rows: number } {
	const box = find("[data-panes]")?.getBoundingClientRect();
	if (!box || box.width < 100) return { cols: 80, rows: 24 };
	const scale = (Number.parseInt(localStorage.getItem("sandgate.terminal.font") ?? "", 10) || 13) / 13;
	return {
		cols: Math.max(20, Math.floor((box.width - 24) / (7.85 * scale))),
		rows: Math.max(5, Math.floor((box.height - 40) / (17 * scale))),
	};
}

async function open(): Promise<void> {
	if (opening || !canRun()) return;
	opening = true;
	try {
		const answer = await fetch(`${base()}/ptys`, {
			method: "POST",
			headers: { Accept: "application/json", "Content-Type": "application/json" },
			body: JSON.stringify(room()),
		});
		if (answer.status === 401) return toSignIn();
		if (!answer.ok) return toast(await reason(answer), "bad");
		const p = (await answer.json()) as Pty;
		addTab(p);
		await showTerminal(p.id);
	} catch {
		toast("The server can't be reached.", "bad");
	} finally {
		opening = false;
	}
}

/** Closes a terminal. What runs in it ends with it, so a running one is asked about. */
async function close(id: string): Promise<void> {
	const tab = tabOf(id);
	const handle = shown.get(id)?.handle;
	if (tab && !tab.hasAttribute("data-ended")) {
		if (!handle) await showTerminal(id);
		const name = nameOf(tab);
		const who = tab.dataset.people ? ` ${tab.dataset.people}.` : "";
		const sure = await shown.get(id)?.handle?.ask(`Close ${name}?`, `Whatever runs in it ends.${who}`, "", "Close it");
		if (!sure) return shown.get(id)?.handle?.focus();
	}
	closed.add(id);
	forget(id);
	try {
		const answer = await fetch(`${base()}/ptys/${id}/close`, {
			method: "POST",
			headers: { Accept: "application/json", "HX-Request": "true" },
		});
		if (!answer.ok) toast(await reason(answer), "bad");
	} catch {
		toast("The server can't be reached.", "bad");
	}
}

/** Takes over the live list: terminals that others opened appear, closed ones go. */
function sync(list: Pty[]): void {
	const ids = new Set(list.map((p) => p.id));
	for (const p of list) if (!closed.has(p.id)) addTab(p);
	for (const id of closed) if (!ids.has(id)) closed.delete(id);
	for (const tab of all(".tab[data-pty]")) {
		const id = tab.dataset.pty ?? "";
		// One that was opened here a moment ago may not be in the list yet; an ended one stays until it is closed.
		if (!ids.has(id) && !opening && !shown.has(id)) tab.remove();
	}
	const nothing = find("#no-terminal");
	if (nothing && !nothing.hidden && all(".tab[data-pty]").length > 0) showAny();
}

export function startTerminals(): void {
	page = find("[data-sandbox]");
	if (!page) return;
	on("click", ".tab[data-pty] [data-tab]", (_, button) => {
		const id = button.closest<HTMLElement>(".tab")?.dataset.pty;
		if (id) void showTerminal(id);
	});
	on("click", "[data-preview-tab]", () => show("preview"));
	on("click", "[data-new-pty]", () => void open());
	on("click", "[data-close-pty-button]", (_, button) => void close(button.dataset.closePtyButton ?? ""));
	on("submit", "form[data-close-pty]", (event, form) => {
		event.preventDefault();
		const id = form.closest<HTMLElement>(".tab")?.dataset.pty;
		if (id) void close(id);
	});
	const askName = (tab: HTMLElement) => {
		const pen = find<HTMLAnchorElement>(".pen", tab.closest<HTMLElement>(".tab") ?? tab);
		if (pen) void openDialog(pen.href);
	};
	on("dblclick", ".tab[data-pty] [data-tab]", (_, tab) => askName(tab));
	on("keydown", "[data-tabs] [data-tab]", (event, tab) => {
		if (event.key === "F2") {
			event.preventDefault();
			askName(tab);
		}
		if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
		const tabs = all(".tabs .tab:not([hidden]) [data-tab]");
		const to = tabs[(tabs.indexOf(tab) + (event.key === "ArrowRight" ? 1 : -1) + tabs.length) % tabs.length];
		to?.focus();
	});
	document.addEventListener("ptys", (event) => sync((event as CustomEvent<Pty[]>).detail));
	document.addEventListener("preview-opened", () => {
		const tab = find("#preview-tab");
		if (tab) tab.hidden = false;
		show("preview");
	});
	document.addEventListener("preview-closed", () => {
		const tab = find("#preview-tab");
		if (tab) tab.hidden = true;
		if (!find("#preview")?.hidden) showAny(true);
	});

	const preview = find("#preview");
	if (preview && !preview.hidden) {
		show("preview", false);
		return;
	}
	// Who comes to this page comes to type, unless they are somewhere else on it already.
	if (all(".tab[data-pty]").length > 0) showAny(document.activeElement === document.body);
	else if (canRun() && page.hasAttribute("data-running") && !page.hasAttribute("data-asks")) void open();
}
