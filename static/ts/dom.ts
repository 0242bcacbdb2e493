// Small things that every part uses.

/** The first match, or null. */
export function find<T extends Element = HTMLElement>(selector: string, within: ParentNode = document): T | null {
	return within.querySelector<T>(selector);
}

/** All matches as an array. */
export function all<T extends Element = HTMLElement>(selector: string, within: ParentNode = document): T[] {
	return [...within.querySelectorAll<T>(selector)];
}

/** Listens on the document for events from elements that match, now and later. */
export function on<K extends keyof DocumentEventMap>(
	type: K,
	selector: string,
	run: (event: DocumentEventMap[K], element: HTMLElement) => void,
): void {
	document.addEventListener(type, (event) => {
		const target = event.target instanceof Element ? event.target.closest<HTMLElement>(selector) : null;
		if (target) run(event, target);
	});
}

/** A click that means "here", not "in a new tab". */
export function plainClick(event: MouseEvent): boolean {
	return event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
}

/** An icon of the sprite, copied from one that is on the page already. */
export function icon(name: string): SVGSVGElement {
	const ns = "http://www.w3.org/2000/svg";
	const svg = document.createElementNS(ns, "svg");
	svg.setAttribute("class", "icon");
	svg.setAttribute("aria-hidden", "true");
	const use = document.createElementNS(ns, "use");
	const known = document.querySelector("svg.icon use")?.getAttribute("href") ?? "";
	use.setAttribute("href", `${known.split("#")[0]}#${name}`);
	svg.append(use);
	return svg;
}

/** Shows a sentence in the corner; errors stay until they are dismissed. */
export function toast(text: string, tone: "ok" | "bad" = "ok"): void {
	const box = document.createElement("div");
	box.className = `notice ${tone}`;
	box.setAttribute("role", tone === "bad" ? "alert" : "status");
	const words = document.createElement("div");
	words.textContent = text;
	const close = document.createElement("button");
	close.type = "button";
	close.className = "btn bare icon";
	close.setAttribute("aria-label", "Dismiss");
	close.dataset.dismiss = "";
	close.append(icon("x"));
	box.append(icon(tone === "bad" ? "circle-alert" : "circle-check"), words, close);
	find("#toasts")?.append(box);
	if (tone === "ok") setTimeout(() => box.remove(), 3500);
}

/** What a failed answer says: the server's sentence, or one about the connection. */
export async function reason(answer: Response): Promise<string> {
	try {
		const body: unknown = await answer.json();
		if (body && typeof body === "object" && "detail" in body && typeof body.detail === "string") return body.detail;
	} catch {
		// no JSON: a proxy's page, say
	}
	return `The server answered ${answer.status}.`;
}

/** Where all addresses of this server begin: "/", or the path that a proxy serves it under. */
export function root(): string {
	return document.documentElement.dataset.root ?? "/";
}

/** Goes to the sign-in page and back here afterwards. */
export function toSignIn(): void {
	const here = location.pathname + location.search;
	location.assign(`${root()}sign-in?next=${encodeURIComponent(here)}`);
}

/** Puts text on the clipboard; false when the browser does not let us. */
export async function copyText(text: string): Promise<boolean> {
	try {
		await navigator.clipboard.writeText(text);
		return true;
	} catch {
		// over plain http browsers have no clipboard: a selection and the old command, which wants a click
	}
	const had = document.activeElement;
	const area = document.createElement("textarea");
	area.value = text;
	area.style.position = "fixed";
	area.style.opacity = "0";
	(find<HTMLDialogElement>("dialog[open]") ?? document.body).append(area);
	area.select();
	const done = document.execCommand("copy");
	area.remove();
	if (had instanceof HTMLElement) had.focus();
	return done;
}
