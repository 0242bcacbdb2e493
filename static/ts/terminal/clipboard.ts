// What a program in a terminal may do to the clipboard (OSC 52): write, once the person said yes for this terminal, and
// never read.
import { copyText } from "../dom";
import { button } from "./page";
import { clipboardRequest, excerpt, maxClipboard } from "./text";

type Page = {
	/** The bytes are new and this page drives: what is replayed and what others type changes no clipboard. */
	may(): boolean;
	say(text: string): void;
	/** The question came, changed or went. */
	changed(): void;
};

export class Clipboard {
	private answer: "open" | "yes" | "no" = "open";
	private wanted = "";

	constructor(private readonly page: Page) {}

	/** Takes the payload of one OSC 52. */
	take(data: string): void {
		if (!this.page.may() || this.answer === "no") return;
		const request = clipboardRequest(data);
		if ("refused" in request) {
			if (request.refused === "read") this.page.say("A program wanted to read your clipboard. That is never allowed.");
			if (request.refused === "size")
				this.page.say(`A program wanted to put more than ${maxClipboard} characters on your clipboard.`);
			return;
		}
		this.wanted = request.text;
		if (this.answer === "yes") void this.write();
		else this.page.changed();
	}

	/** The question that waits for the person, if any, and its buttons. */
	question(): { text: string; acts: HTMLElement[] } | undefined {
		if (this.wanted === "") return undefined;
		const n = this.wanted.length;
		const text = `A program wants to put “${excerpt(this.wanted)}” (${n} characters) on your clipboard.`;
		const yes = this.answer === "yes" ? "Copy" : "Allow in this terminal";
		return {
			text,
			acts: [
				button(yes, "", () => {
					this.answer = "yes";
					void this.write();
				}),
				button("Refuse", "Programs in this terminal do not ask again until the page is loaded anew", () => {
					this.answer = "no";
					this.forget();
				}),
			],
		};
	}

	/** Forgets what waits: somebody else drives now. */
	forget(): void {
		if (this.wanted === "") return;
		this.wanted = "";
		this.page.changed();
	}

	private async write(): Promise<void> {
		const text = this.wanted;
		const done = await copyText(text);
		if (done && this.wanted === text) this.wanted = "";
		this.page.changed(); // where the browser wants a click for it, the question stays
		if (done) this.page.say(`A program put “${excerpt(text, 30)}” on your clipboard.`);
	}
}
