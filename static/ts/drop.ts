// Files that are dropped onto a terminal go up into the folder that its shell is in.
import { reason, toast, toSignIn } from "./dom";
import { droppedFiles, fileIn, readAgain } from "./files";
import type { Handle } from "./terminal";

/** Where a terminal's shell is: to be shown, and to be used. */
interface Folder {
	shown: string;
	query: URLSearchParams;
}

interface Place {
	pane: HTMLElement;
	/** Address of the sandbox's page. */
	base: string;
	id: string;
	handle(): Handle | null;
}

const carriesFiles = (e: DragEvent): boolean => !!e.dataTransfer?.types.includes("Files");

async function folderOf(place: Place): Promise<Folder> {
	const otherwise = { shown: "/work", query: new URLSearchParams({ path: "/work" }) };
	const answer = await fetch(`${place.base}/ptys`, { headers: { Accept: "application/json" } });
	if (answer.status === 401) toSignIn();
	if (!answer.ok) return otherwise;
	const list = (await answer.json()) as { id: string; cwd: string; cwd_b64: string }[];
	const mine = list.find((p) => p.id === place.id);
	if (!mine?.cwd_b64) return otherwise;
	return { shown: mine.cwd, query: new URLSearchParams({ path_b64: mine.cwd_b64 }) };
}

/** Makes a terminal's pane take files. */
export function takeDrops(place: Place): void {
	const { pane } = place;
	let depth = 0;
	let folder: Promise<Folder> | null = null;
	const over = (is: boolean) => {
		if (!is) depth = 0;
		pane.classList.toggle("over", is);
	};
	pane.addEventListener("dragenter", (e) => {
		if (!carriesFiles(e)) return;
		if (depth++ > 0) return;
		pane.dataset.drop = "Drop to upload here";
		over(true);
		folder = folderOf(place);
		folder.then(
			(f) => (pane.dataset.drop = `Drop to upload to ${f.shown}`),
			() => (folder = null),
		);
	});
	pane.addEventListener("dragleave", (e) => {
		if (carriesFiles(e) && --depth <= 0) over(false);
	});
	pane.addEventListener("dragover", (e) => {
		if (carriesFiles(e)) e.preventDefault();
	});
	pane.addEventListener("drop", (e) => {
		over(false);
		if (!carriesFiles(e)) return;
		e.preventDefault();
		e.stopPropagation();
		void uploadAll(place, droppedFiles(e), folder ?? folderOf(place));
	});
}

async function uploadAll(place: Place, files: File[], where: Promise<Folder>): Promise<void> {
	let folder: Folder;
	try {
		folder = await where;
	} catch {
		toast("The server can't be reached.", "bad");
		return;
	}
	let done = 0;
	for (const file of files) {
		const handle = place.handle();
		const name = `${file.name} to ${folder.shown}`;
		const show = (part: number) => handle?.progress(`${name}: ${Math.floor(part * 100)} %`, part);
		const url = (fresh: boolean) =>
			`${place.base}/files/raw?${fileIn(folder.query, file.name)}${fresh ? "&new=1" : ""}`;
		let answer = await put(url(true), file, show);
		if (answer?.status === 412) {
			const why = `There is a file of this name in ${folder.shown} already.`;
			if (await handle?.ask("Replace the file?", why, file.name, "Replace")) answer = await put(url(false), file, show);
			else continue;
		}
		if (answer?.status === 401) toSignIn();
		else if (!answer) toast(`${file.name}: the connection broke off.`, "bad");
		else if (answer.ok) done++;
		else toast(`${file.name}: ${await reason(answer)}`, "bad");
	}
	const handle = place.handle();
	handle?.progress("");
	if (done > 0) {
		handle?.say(`${done === 1 && files.length === 1 ? files[0]?.name : `${done} files`} uploaded to ${folder.shown}.`);
		readAgain();
	}
	handle?.focus();
}

/** fetch has no progress of what goes up, so this is the old way. undefined: no answer. */
function put(url: string, file: File, progress: (part: number) => void): Promise<Response | undefined> {
	progress(0);
	return new Promise((done) => {
		const x = new XMLHttpRequest();
		x.open("PUT", url);
		x.setRequestHeader("Accept", "application/json");
		x.setRequestHeader("Content-Type", "application/octet-stream");
		x.upload.addEventListener("progress", (e) => e.lengthComputable && e.total > 0 && progress(e.loaded / e.total));
		x.addEventListener("load", () =>
			done(new Response(x.status === 204 ? null : x.responseText, { status: x.status })),
		);
		x.addEventListener("error", () => done(undefined));
		x.send(file);
	});
}
