// What any page may have: copy buttons, menus, selections, keys.
import { openDialog } from "./dialog";
import { all, copyText, find, on, toast } from "./dom";

async function copy(text: string): Promise<void> {
	if (await copyText(text)) toast("Copied.");
	else toast("The browser did not let it be copied.", "bad");
}

function countSelected(): void {
	const boxes = all<HTMLInputElement>("input[name=id]");
	const n = boxes.filter((b) => b.checked).length;
	for (const bar of all("[data-selection]")) bar.hidden = n === 0;
	for (const words of all("[data-selected-count]")) words.textContent = `${n} selected`;
	for (const b of all<HTMLInputElement>("[data-select-all]")) {
		b.checked = n > 0 && n === boxes.length;
		b.indeterminate = n > 0 && n < boxes.length;
	}
}

function typing(event: KeyboardEvent): boolean {
	const t = event.target;
	return t instanceof HTMLElement && (t.isContentEditable || !!t.closest("input, textarea, select, .xterm"));
}

const help: [string, string][] = [
	["n", "new sandbox"],
	["/", "find"],
	["j k", "next, previous request (on Approvals)"],
	["a Enter", "approve it"],
	["d", "deny it"],
	["Ctrl K", "go to a sandbox or page"],
	["?", "this list"],
	["Esc", "close"],
];

function showHelp(): void {
	const box = find<HTMLDialogElement>("#dialog");
	if (!box || box.open) return;
	const list = document.createElement("div");
	list.className = "grid-keys";
	for (const [key, words] of help) {
		const k = document.createElement("kbd");
		k.textContent = key;
		const w = document.createElement("span");
		w.textContent = words;
		const cell = document.createElement("span");
		cell.append(k);
		list.append(cell, w);
	}
	const title = document.createElement("h1");
	title.textContent = "Keys";
	title.className = "mb-3";
	box.replaceChildren(title, list);
	box.setAttribute("aria-label", "Keys");
	box.showModal();
}

export function startPage(): void {
	on("click", "[data-copy]", (_, button) => void copy(button.dataset.copy ?? ""));
	on("click", "[data-dismiss]", (_, button) => button.closest(".notice")?.remove());
	on("change", "[data-auto-submit] select", (_, select) => select.closest("form")?.requestSubmit());
	on("change", "[data-select-all]", (_, box) => {
		for (const b of all<HTMLInputElement>("input[name=id]")) b.checked = (box as HTMLInputElement).checked;
		countSelected();
	});
	on("change", "input[name=id]", countSelected);
	document.addEventListener("live-changed", countSelected);
	document.addEventListener("htmx:afterSettle", countSelected);
	countSelected();

	// Menus close when one clicks elsewhere or leaves them.
	document.addEventListener("click", (event) => {
		for (const menu of all<HTMLDetailsElement>("details[data-menu][open]")) {
			const inside = event.target instanceof Element && menu.contains(event.target);
			if (!inside || (event.target as Element).closest("a[download]")) menu.open = false; // a download leaves the page as it is
		}
	});
	// A form that makes something is sent once.
	on("submit", "form[data-once]", (_, form) => {
		const button = find<HTMLButtonElement>("button.go", form);
		if (button) {
			button.textContent = button.dataset.busy ?? button.textContent;
			if (!form.hasAttribute("hx-post")) setTimeout(() => (button.disabled = true));
		}
	});

	document.addEventListener("keydown", (event) => {
		if (
			(event.ctrlKey || event.metaKey) &&
			event.key.toLowerCase() === "k" &&
			!(event.target instanceof Element && event.target.closest(".xterm"))
		) {
			event.preventDefault();
			void import("./palette").then((m) => m.openPalette());
			return;
		}
		if (event.key === "Escape") {
			for (const menu of all<HTMLDetailsElement>("details[data-menu][open]")) {
				menu.open = false;
				find("summary", menu)?.focus();
			}
		}
		if (typing(event) || event.ctrlKey || event.metaKey || event.altKey || find("dialog[open]")) return;
		if (event.key === "/") {
			const box = find<HTMLInputElement>("[data-search]");
			if (!box) return;
			event.preventDefault();
			box.focus();
			box.select();
		} else if (event.key === "n" && document.body.dataset.base && !find("[data-sandbox]")) {
			// Not beside a terminal: letters typed a moment before it has the focus must do nothing.
			event.preventDefault();
			void openDialog(`${document.body.dataset.base}/sandboxes/new`);
		} else if (event.key === "?") {
			event.preventDefault();
			showHelp();
		}
	});
}
