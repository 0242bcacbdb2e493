// Ctrl-K: type a few letters and go. It reads the list page, so that it knows nothing that the page would not show.
import { all, find, root } from "./dom";

interface Place {
	text: string;
	more: string;
	url: string;
}

async function places(): Promise<Place[]> {
	const found: Place[] = all<HTMLAnchorElement>(".nav-link, .switcher .menu a").map((a) => ({
		text: a.textContent?.trim() ?? "",
		more: a.classList.contains("nav-link") ? "page" : "workspace",
		url: a.href,
	}));
	found.push({ text: "Account", more: "page", url: `${root()}account` });
	const base = document.body.dataset.base;
	if (!base) return found;
	try {
		const answer = await fetch(`${base}/sandboxes`);
		const page = new DOMParser().parseFromString(await answer.text(), "text/html");
		const rows = all("tr[data-id]", page).map((row) => {
			const link = find<HTMLAnchorElement>("a.name", row);
			return { text: link?.textContent ?? "", more: row.dataset.id ?? "", url: link?.getAttribute("href") ?? "" };
		});
		found.unshift(...rows);
	} catch {
		// the pages alone, then
	}
	return found;
}

export async function openPalette(): Promise<void> {
	const box = find<HTMLDialogElement>("#dialog");
	if (!box || box.open) return;
	const input = document.createElement("input");
	input.className = "in";
	input.placeholder = "Go to a sandbox or page";
	input.setAttribute("aria-label", "Go to");
	const list = document.createElement("nav");
	list.className = "palette-list mt-2";
	box.replaceChildren(input, list);
	box.setAttribute("aria-label", "Go to");
	box.showModal();
	input.focus();
	const known = await places();
	let at = 0;
	const show = () => {
		const words = input.value.toLowerCase();
		const hits = known.filter((p) => `${p.text} ${p.more}`.toLowerCase().includes(words)).slice(0, 9);
		at = Math.max(0, Math.min(at, hits.length - 1));
		list.replaceChildren(
			...hits.map((p, i) => {
				const a = document.createElement("a");
				a.href = p.url;
				a.className = i === at ? "on" : "";
				const name = document.createElement("bdi");
				name.textContent = p.text;
				const more = document.createElement("span");
				more.className = "sub";
				more.textContent = p.more;
				a.append(name, more);
				return a;
			}),
		);
	};
	input.addEventListener("input", () => {
		at = 0;
		show();
	});
	input.addEventListener("keydown", (event) => {
		if (event.key === "ArrowDown" || event.key === "ArrowUp") {
			event.preventDefault();
			at += event.key === "ArrowDown" ? 1 : -1;
			show();
		} else if (event.key === "Enter") find<HTMLAnchorElement>("a.on", list)?.click();
	});
	show();
}
