// The file pane: folders open in place, files go up with progress, previews open as a tab. Links lead the same way without us.
import { all, find, icon, on, plainClick, reason, toast, toSignIn } from "./dom";
import htmx from "./htmx";

const headers = { "HX-Request": "true" };

const pane = (): HTMLElement | null => find("#files");

/** The address of the files' own parts, from the page's address with the same query. */
function partURL(pageURL: string, part = ""): string {
	const url = new URL(pageURL, location.href);
	return `${pane()?.dataset.files ?? ""}${part}${url.search}`;
}

async function fetchPart(url: string): Promise<string | null> {
	let answer: Response;
	try {
		answer = await fetch(url, { headers });
	} catch {
		toast("The server can't be reached.", "bad");
		return null;
	}
	if (answer.status === 401) {
		toSignIn();
		return null;
	}
	const html = await answer.text();
	if (answer.ok) return html;
	find("#toasts")?.insertAdjacentHTML("beforeend", html);
	return null;
}

let asked = 0;

/** Shows the folder that a page's address names. */
async function openFolder(pageURL: string): Promise<void> {
	const box = pane();
	if (!box) return;
	const mine = ++asked;
	const html = await fetchPart(partURL(pageURL));
	if (html === null || mine !== asked) return;
	const uploads = find("[data-uploads]", box);
	box.innerHTML = html;
	if (uploads?.childElementCount) find("[data-uploads]", box)?.replaceWith(uploads);
	htmx.process(box);
}

/** Reads the folder that is shown again. */
export function readAgain(): void {
	void openFolder(location.href);
}

async function openPreview(pageURL: string): Promise<void> {
	const box = find("#preview");
	const tab = find("[data-preview-tab]");
	if (!box || !tab) return;
	const html = await fetchPart(partURL(pageURL, "/preview"));
	if (html === null) return;
	box.innerHTML = html;
	tab.textContent = find("[data-preview-name]", box)?.dataset.previewName ?? "Preview";
	const close = find<HTMLAnchorElement>("[data-close-preview]");
	if (close) close.href = withoutFile(pageURL);
	document.dispatchEvent(new CustomEvent("preview-opened"));
}

function withoutFile(pageURL: string): string {
	const url = new URL(pageURL, location.href);
	url.searchParams.delete("file");
	url.searchParams.delete("file_b64");
	return url.pathname + url.search;
}

function markSelected(link: HTMLElement): void {
	for (const e of all(".entry.on")) e.classList.remove("on");
	link.closest(".entry")?.classList.add("on");
}

interface Upload {
	file: File;
	url: string;
	line: HTMLElement;
	meter: HTMLProgressElement;
	words: HTMLElement;
}

const waiting: Upload[] = [];
let running = 0;

/** The query that names a file in a folder, which is given as path or path_b64. */
export function fileIn(folder: URLSearchParams, name: string): URLSearchParams {
	const target = new URLSearchParams();
	const dir64 = folder.get("path_b64");
	if (dir64 !== null) {
		const dir = Uint8Array.from(atob(dir64.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
		const rest = new TextEncoder().encode(`/${name}`);
		target.set("path_b64", btoa(String.fromCharCode(...dir, ...rest)));
	} else {
		target.set("path", `${(folder.get("path") ?? "/work").replace(/\/$/, "")}/${name}`);
	}
	return target;
}

/** The files among what is dropped; folders are told of. */
export function droppedFiles(e: DragEvent): File[] {
	const found: File[] = [];
	for (const item of e.dataTransfer?.items ?? []) {
		if (item.webkitGetAsEntry()?.isDirectory) {
			toast("Folders can't be uploaded here yet: drop the files in it, or a zip.", "bad");
			continue;
		}
		const file = item.getAsFile();
		if (file) found.push(file);
	}
	return found;
}

/** Puts a file into the queue; two go up at a time. */
function upload(file: File): void {
	const box = pane();
	const target = fileIn(new URLSearchParams(find("[data-here]", box ?? document)?.dataset.here ?? ""), file.name);
	const line = document.createElement("div");
	line.className = "up";
	const name = document.createElement("bdi");
	name.className = "t";
	name.textContent = file.name;
	const words = document.createElement("span");
	words.textContent = "waiting";
	const cancel = document.createElement("button");
	cancel.type = "button";
	cancel.className = "x";
	cancel.setAttribute("aria-label", `Stop uploading ${file.name}`);
	cancel.append(icon("x"));
	const meter = document.createElement("progress");
	meter.className = "meter";
	meter.max = 100;
	meter.value = 0;
	meter.setAttribute("aria-label", `Uploading ${file.name}`);
	line.append(name, words, cancel, meter);
	find("[data-uploads]")?.append(line);
	const item = { file, url: `${box?.dataset.files}/raw?${target}`, line, meter, words };
	cancel.addEventListener("click", () => {
		const i = waiting.indexOf(item);
		if (i >= 0) waiting.splice(i, 1);
		line.dispatchEvent(new Event("stop"));
		line.remove();
	});
	waiting.push(item);
	next();
}

function next(): void {
	while (running < 2) {
		const item = waiting.shift();
		if (!item) return;
		running++;
		void send(item).finally(() => {
			running--;
			next();
			if (running === 0 && waiting.length === 0) readAgain();
		});
	}
}

/** fetch has no progress of what goes up, so this is the old way. */
function send(item: Upload): Promise<void> {
	return new Promise((done) => {
		const x = new XMLHttpRequest();
		x.open("PUT", item.url);
		x.setRequestHeader("Accept", "application/json");
		x.setRequestHeader("Content-Type", "application/octet-stream");
		const failed = (words: string) => {
			item.line.classList.add("bad");
			item.words.textContent = "failed";
			item.meter.remove();
			toast(`${item.file.name}: ${words}`, "bad");
			done();
		};
		x.upload.addEventListener("progress", (e) => {
			if (!e.lengthComputable || e.total === 0) return;
			const percent = Math.floor((e.loaded / e.total) * 100);
			item.meter.value = percent;
			item.words.textContent = `${percent} %`;
		});
		x.addEventListener("load", async () => {
			if (x.status === 401) return toSignIn();
			if (x.status >= 300) return failed(await reason(new Response(x.responseText, { status: x.status })));
			item.meter.value = 100;
			item.words.textContent = "done";
			setTimeout(() => item.line.remove(), 1500);
			done();
		});
		x.addEventListener("error", () => failed("the connection broke off."));
		x.addEventListener("abort", () => done());
		item.line.addEventListener("stop", () => x.abort());
		x.send(item.file);
	});
}

export function startFiles(): void {
	const box = pane();
	if (!box) return;
	on("click", "a[data-files-link]", (event, link) => {
		if (!plainClick(event)) return;
		event.preventDefault();
		const url = (link as HTMLAnchorElement).href;
		history.pushState({}, "", url);
		void openFolder(url);
	});
	on("click", "a[data-preview-link]", (event, link) => {
		if (!plainClick(event)) return;
		event.preventDefault();
		const url = (link as HTMLAnchorElement).href;
		history.pushState({}, "", url);
		markSelected(link);
		void openPreview(url);
	});
	on("click", "a[data-files-more]", (event, link) => {
		if (!plainClick(event)) return;
		event.preventDefault();
		void fetchPart((link as HTMLAnchorElement).href).then((html) => {
			if (html !== null) link.closest("li")?.insertAdjacentHTML("afterend", html);
			if (html !== null) link.closest("li")?.remove();
		});
	});
	on("click", "a[data-close-preview]", (event, link) => {
		if (!plainClick(event)) return;
		event.preventDefault();
		history.pushState({}, "", (link as HTMLAnchorElement).href);
		for (const e of all(".entry.on")) e.classList.remove("on");
		document.dispatchEvent(new CustomEvent("preview-closed"));
	});
	on("click", "[data-refresh-files]", readAgain);
	on("change", "[data-upload]", (_, input) => {
		const chosen = input as HTMLInputElement;
		for (const file of chosen.files ?? []) upload(file);
		chosen.value = "";
	});
	document.addEventListener("files-changed", readAgain);
	addEventListener("popstate", () => {
		void openFolder(location.href);
		if (new URLSearchParams(location.search).has("file")) void openPreview(location.href);
		else document.dispatchEvent(new CustomEvent("preview-closed"));
	});

	let depth = 0;
	const carriesFiles = (e: DragEvent) => !!e.dataTransfer?.types.includes("Files") && !!find("[data-upload]", box);
	box.addEventListener("dragenter", (e) => {
		if (!carriesFiles(e)) return;
		depth++;
		box.classList.add("over");
	});
	box.addEventListener("dragleave", () => {
		depth = Math.max(0, depth - 1);
		if (depth === 0) box.classList.remove("over");
	});
	box.addEventListener("dragover", (e) => {
		if (carriesFiles(e)) e.preventDefault();
	});
	box.addEventListener("drop", (e) => {
		depth = 0;
		box.classList.remove("over");
		if (!carriesFiles(e)) return;
		e.preventDefault();
		for (const file of droppedFiles(e)) upload(file);
	});
	// A file dropped beside the pane must not replace the page.
	addEventListener("dragover", (e) => e.preventDefault());
	addEventListener("drop", (e) => e.preventDefault());
}
