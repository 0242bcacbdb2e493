// Live parts: the server sends a part again when it changed, and it is morphed in place. Nothing moves while text is being
// selected, nor under the pointer; a lost connection is shown and heals itself.
import { Idiomorph } from "idiomorph";
import { all, find, root, toSignIn } from "./dom";

/** Parts whose news wait, with the newest of it. */
const held = new Map<HTMLElement, string>();
let lastMove = 0;
let pointerOver: EventTarget | null = null;

function selecting(within: HTMLElement): boolean {
	const s = getSelection();
	return !!s && !s.isCollapsed && !!s.anchorNode && within.contains(s.anchorNode);
}

const order = (within: ParentNode): string =>
	all("[data-id]", within)
		.map((row) => row.dataset.id)
		.join();

/** Whether news for a part must wait: it would move rows under a pointer that was used a moment ago. */
function mustWait(part: HTMLElement, html: string): boolean {
	if (selecting(part)) return true;
	if (part.querySelector("details[open]")) return true;
	const hovered = pointerOver instanceof Node && part.contains(pointerOver) && Date.now() - lastMove < 2500;
	if (!hovered || !part.hasAttribute("data-rows")) return false;
	const next = document.createElement("template");
	next.innerHTML = html;
	return order(next.content) !== order(part);
}

function morph(part: HTMLElement, html: string): void {
	const picked = new Set(all<HTMLInputElement>("input[name=id]:checked", part).map((box) => box.value));
	Idiomorph.morph(part, html, { morphStyle: "innerHTML", ignoreActiveValue: true });
	for (const box of all<HTMLInputElement>("input[name=id]", part)) box.checked = picked.has(box.value);
	part.dispatchEvent(new CustomEvent("live-changed", { bubbles: true }));
}

function mark(state: "on" | "lost" | "held", words: string): void {
	for (const m of all("[data-live-mark]")) {
		if (m.dataset.state === state && m.textContent === words) continue;
		m.dataset.state = state;
		m.textContent = words;
	}
}

function flush(): void {
	for (const [part, html] of held) {
		if (!part.isConnected) held.delete(part);
		else if (!mustWait(part, html)) {
			held.delete(part);
			morph(part, html);
		}
	}
	if (held.size === 0 && find("[data-live-mark][data-state=held]")) mark("on", "live");
}

/** After a lost connection: still signed in? Then it comes back by itself. */
async function check(): Promise<void> {
	try {
		const answer = await fetch(`${root()}session`, { headers: { Accept: "application/json" }, cache: "no-store" });
		if (answer.status === 401) toSignIn();
	} catch {
		// the server is away: keep trying
	}
}

function ended(word: string): void {
	if (word === "signed-out") return toSignIn();
	if (word === "gone") return location.assign(`${document.body.dataset.base}/sandboxes?done=gone`);
	location.reload(); // the right was taken: the page says what is left of it
}

interface MessageDetail {
	data: string;
	type: string;
}

export function startLive(): void {
	document.addEventListener("pointermove", (event) => {
		lastMove = Date.now();
		pointerOver = event.target;
	});
	document.addEventListener("selectionchange", flush);
	setInterval(flush, 700);

	document.body.addEventListener("htmx:sseBeforeMessage", (event) => {
		event.preventDefault(); // we swap ourselves
		const part = event.target as HTMLElement;
		const { data } = (event as CustomEvent<MessageDetail>).detail;
		if (mustWait(part, data)) {
			held.set(part, data);
			mark("held", "paused");
			return;
		}
		held.delete(part);
		morph(part, data);
	});
	document.body.addEventListener("htmx:sseOpen", (event) => {
		mark("on", "live");
		const source = (event as CustomEvent<{ source: EventSource }>).detail.source;
		source.addEventListener("end", (e) => {
			source.close();
			ended((e as MessageEvent<string>).data);
		});
		source.addEventListener("status", (e) => {
			// A page that was made before the sandbox ran has no terminal and no files on it.
			const page = find("[data-sandbox]");
			if (page && !page.hasAttribute("data-running") && JSON.parse((e as MessageEvent<string>).data) === "running")
				location.reload();
		});
		source.addEventListener("ptys", (e) => {
			document.dispatchEvent(new CustomEvent("ptys", { detail: JSON.parse((e as MessageEvent<string>).data) }));
		});
	});
	document.body.addEventListener("htmx:sseError", () => {
		mark("lost", "connection lost, reconnecting");
		void check();
	});
}
