// Plays the recording of a terminal, as a chunk of its own. What it shows was printed inside a sandbox: the player draws it as text,
// and opens, copies and answers nothing.
import { create, type Player } from "asciinema-player";
import { find } from "./dom";

/** The moment that the address names as #t=SECONDS, or undefined. */
export function moment(hash: string): number | undefined {
	const m = /^#t=(\d{1,7}(?:\.\d{1,3})?)$/.exec(hash);
	return m ? Number(m[1]) : undefined;
}

/** A marker of a recording: what it says, and when, in seconds from the beginning. */
export interface Marker {
	at: number;
	label: string;
}

/** The markers of an asciicast, version 3: its times are counted from the event before. */
export function markersOf(cast: string): Marker[] {
	const out: Marker[] = [];
	let at = 0;
	for (const line of cast.split("\n")) {
		const step = /^\[\s*([0-9.]+)\s*,\s*"(.)"/.exec(line);
		if (!step) continue;
		at += Number(step[1]);
		if (step[2] !== "m") continue;
		try {
			out.push({ at, label: String(JSON.parse(line)[2]) });
		} catch {
			out.push({ at, label: "" }); // the player counts it, too
		}
	}
	return out;
}

/** A moment as a player shows it. */
function clock(at: number): string {
	const s = Math.floor(at);
	return `${Math.floor(s / 60)}:${String(s % 60).padStart(2, "0")}`;
}

/** Lists the markers beside the player; one about a request for approval leads to it. What they say is text. */
function list(markers: Marker[], player: Player, requests: string): void {
	const box = find("[data-markers]");
	const place = box && find("ol", box);
	if (!box || !place || markers.length === 0) return;
	markers.slice(0, 500).forEach((m, marker) => {
		const line = document.createElement("li");
		const go = document.createElement("button");
		go.type = "button";
		go.className = "btn sm num";
		go.textContent = clock(m.at);
		go.setAttribute("aria-label", `Go to ${clock(m.at)}`);
		go.addEventListener("click", () => void player.seek({ marker }));
		const said = document.createElement("bdi");
		const request = /^([a-z ]+: )(ap[a-z0-9]{20})$/.exec(m.label);
		if (request && requests) {
			const link = document.createElement("a");
			link.className = "link";
			link.href = requests + request[2];
			link.textContent = request[2] ?? "";
			said.append(request[1] ?? "", link);
		} else said.textContent = m.label;
		line.append(go, said);
		place.append(line);
	});
	box.hidden = false;
}

async function read(url: string): Promise<string> {
	const answer = await fetch(url);
	if (!answer.ok) throw new Error(`the recording cannot be read: ${answer.status}`);
	return answer.text();
}

export function play(place: HTMLElement): void {
	const at = moment(location.hash);
	const cast = read(place.dataset.player ?? "");
	const player: Player = create({ data: () => cast }, place, {
		...(at === undefined ? {} : { startAt: at }),
		preload: true,
		poster: `npt:${at ?? 1}`,
		idleTimeLimit: 3,
		fit: "width",
		terminalFontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono").trim() || "monospace",
		controls: true,
	});
	cast.then((text) => list(markersOf(text), player, place.dataset.requests ?? "")).catch(() => {}); // the player says so
	window.addEventListener("hashchange", () => {
		const to = moment(location.hash);
		if (to !== undefined) void player.seek(to);
	});
}
