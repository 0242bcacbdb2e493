// Plays the recording of a terminal, as a chunk of its own. What it shows was printed inside a sandbox: the player draws it as text,
// and opens, copies and answers nothing.
import { create, type Player } from "asciinema-player";

/** The moment that the address names as #t=SECONDS, or undefined. */
export function moment(hash: string): number | undefined {
	const m = /^#t=(\d{1,7}(?:\.\d{1,3})?)$/.exec(hash);
	return m ? Number(m[1]) : undefined;
}

export function play(place: HTMLElement): void {
	const at = moment(location.hash);
	const player: Player = create({ url: place.dataset.player ?? "" }, place, {
		...(at === undefined ? {} : { startAt: at }),
		preload: true,
		poster: `npt:${at ?? 1}`,
		idleTimeLimit: 3,
		fit: "width",
		terminalFontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono").trim() || "monospace",
		controls: true,
	});
	window.addEventListener("hashchange", () => {
		const to = moment(location.hash);
		if (to !== undefined) void player.seek(to);
	});
}
