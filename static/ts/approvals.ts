// The queue of requests: keys, the number in the title, and the browser's own notices. Deciding works without all of it.
import { openDialog } from "./dialog";
import { all, find, on } from "./dom";

const plainTitle = document.title.replace(/^\(\d+\) /, "");
let known = -1;

function waiting(): number {
	return Number(find("[data-waiting]")?.dataset.waiting ?? 0);
}

/** Says how many wait: in the title, in the navigation, and to who asked to be told. */
function tell(): void {
	if (!find("[data-waiting]")) return; // a list of decided ones tells nothing about what waits
	const now = waiting();
	document.title = now > 0 ? `(${now}) ${plainTitle}` : plainTitle;
	for (const c of all("[data-waiting-count]")) {
		c.hidden = now === 0;
		if (c.firstChild) c.firstChild.textContent = String(now);
	}
	if (
		known >= 0 &&
		now > known &&
		document.hidden &&
		"Notification" in window &&
		Notification.permission === "granted"
	) {
		new Notification("Sandgate", { body: `${now} waiting for a decision`, tag: "sandgate-approvals" });
	}
	known = now;
}

function offerNotices(): void {
	const button = find<HTMLButtonElement>("[data-notify]");
	if (!button || !("Notification" in window)) return;
	button.hidden = Notification.permission !== "default";
}

function step(by: number): void {
	const links = all<HTMLAnchorElement>("a[data-ask]");
	const at = links.findIndex((a) => a.hasAttribute("aria-current"));
	const next = links[at < 0 ? 0 : at + by];
	if (next) location.assign(next.href);
}

function keys(event: KeyboardEvent): void {
	const t = event.target;
	if (event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
	if (t instanceof HTMLElement && t.closest("input, textarea, select")) return;
	if (event.key === "j") step(1);
	else if (event.key === "k") step(-1);
	else if (event.key === "a")
		find<HTMLButtonElement>("[data-key=a]")?.focus(); // Enter is the confirmation
	else if (event.key === "d") {
		const link = find<HTMLAnchorElement>("a[data-key=d]");
		if (link) void openDialog(link.href);
	} else return;
	event.preventDefault();
}

export function startApprovals(): void {
	if (!find("[data-approvals]")) return;
	document.addEventListener("keydown", keys);
	document.addEventListener("live-changed", tell);
	on("click", "[data-notify]", () => void Notification.requestPermission().then(offerNotices));
	document.body.addEventListener("htmx:sseOpen", (event) => {
		const source = (event as CustomEvent<{ source: EventSource }>).detail.source;
		// The page says that nothing waits, and something does now.
		source.addEventListener("first", () => {
			if (!find("[data-request]")) location.reload();
		});
	});
	offerNotices();
	tell();
}
