// Pages that ask something are shown in a dialog where there is JavaScript: the same page, its form alone.
import { all, find, on, plainClick, reason, toast, toSignIn } from "./dom";
import htmx from "./htmx";

const dialog = (): HTMLDialogElement | null => find<HTMLDialogElement>("#dialog");

/** Fetches a form and shows it. */
export async function openDialog(url: string): Promise<void> {
	const box = dialog();
	if (!box) return location.assign(url);
	let answer: Response;
	try {
		answer = await fetch(url, { headers: { "HX-Request": "true" }, redirect: "error" });
	} catch {
		toast("The server can't be reached.", "bad");
		return;
	}
	if (answer.status === 401) return toSignIn();
	const html = await answer.text();
	if (!answer.ok) {
		if (answer.headers.get("HX-Retarget") === "#toasts") find("#toasts")?.insertAdjacentHTML("beforeend", html);
		else toast(await reason(answer), "bad");
		return;
	}
	box.innerHTML = html;
	box.setAttribute("aria-label", find("h1", box)?.textContent ?? "Dialog");
	htmx.process(box);
	if (!box.open) box.showModal();
	ready(box);
}

export function closeDialog(): void {
	const box = dialog();
	if (!box?.open) return;
	box.close();
	box.replaceChildren();
}

/** Puts the cursor where one begins, and locks the button until what has to be typed is there. */
function ready(box: HTMLElement): void {
	const first = find<HTMLInputElement>("[autofocus]", box);
	first?.focus();
	if (first instanceof HTMLInputElement && first.type === "text") {
		const dot = first.name === "name" ? first.value.lastIndexOf(".") : -1;
		first.setSelectionRange(0, dot > 0 ? dot : first.value.length);
	}
	for (const input of all<HTMLInputElement>("[data-typed]", box)) {
		const button = find<HTMLButtonElement>(".btn.sure", box);
		const judge = () => {
			if (button) button.disabled = input.value !== input.dataset.typed;
		};
		input.addEventListener("input", judge);
		judge();
	}
}

export function startDialogs(): void {
	on("click", "a[data-dialog]", (event, link) => {
		if (!plainClick(event)) return;
		event.preventDefault();
		link.closest("details")?.removeAttribute("open");
		void openDialog((link as HTMLAnchorElement).href);
	});
	// A form that leads to a question: its fields become the question's address.
	on("click", "button[data-dialog-form]", (event, button) => {
		const form = (button as HTMLButtonElement).form;
		if (!form) return;
		event.preventDefault();
		const query = new URLSearchParams();
		for (const [name, value] of new FormData(form)) if (typeof value === "string") query.append(name, value);
		void openDialog(`${form.action}?${query}`);
	});
	on("click", "#dialog [data-close]", (event) => {
		event.preventDefault();
		closeDialog();
	});
	dialog()?.addEventListener("click", (event) => {
		if (event.target === dialog()) closeDialog(); // the backdrop
	});
	document.addEventListener("htmx:afterSettle", (event) => {
		const box = dialog();
		if (box?.open && event.target instanceof Node && box.contains(event.target)) ready(box);
	});
	document.addEventListener("files-changed", closeDialog);
	document.addEventListener("terminal-renamed", closeDialog);
	const lone = find(".main [data-typed], .lone [data-typed]");
	if (lone) ready(lone.closest("form") ?? document.body);
}
