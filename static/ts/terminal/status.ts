// How things stand at one terminal: connection, role, people, questions. It decides what the bar says and offers.
import type { Clipboard } from "./clipboard";
import type { ClientMessage, LinkState } from "./link";
import { type Bar, button, element } from "./page";
import { PeopleList, presence } from "./people";
import { type Ending, exitText, type Person, type Role, type ServerFrame } from "./protocol";
import { cleanTitle } from "./text";

export type Host = {
	el: HTMLElement;
	canType: boolean;
	signIn: string | undefined;
	send(message: ClientMessage): void;
	retry(): void;
	focus(): void;
	/** Keys reach the terminal, or not. */
	typing(may: boolean): void;
	/** This page drives now: its size counts. */
	driving(): void;
	size(cols: number, rows: number): void;
};

export class Status {
	role: Role = "viewer";
	state = "connecting";
	readonly people: PeopleList;
	private driver = "";
	private present: Person[] = [];
	private exit = "";
	private trouble = ""; // what the sandbox is up to while the connection itself is fine
	private stuck = false; // the program takes no input
	private greeted = false;
	private loss = ""; // what the broken connection may have lost

	constructor(
		private readonly host: Host,
		private readonly bar: () => Bar,
		private readonly clipboard: () => Clipboard,
	) {
		this.people = new PeopleList((id) => {
			host.send({ type: "grant_control", viewer: id });
			host.focus();
		});
	}

	/** Whether the same person drives in another window. */
	get drivesElsewhere(): boolean {
		return this.role !== "driver" && this.present.some((p) => p.drives && p.same);
	}

	message(f: Exclude<ServerFrame, { kind: "output" | "snapshot" | "pong" }>): void {
		switch (f.kind) {
			case "recording":
				this.bar().recorded(f.on);
				break;
			case "hello":
				this.bar().recorded(false); // else it says so
				this.trouble = "";
				this.host.size(f.cols, f.rows);
				this.setRole(f.role, f.driver);
				this.host.send({ type: "people" });
				break;
			case "size":
				this.host.size(f.cols, f.rows);
				break;
			case "role":
				this.setRole(f.role, f.driver);
				break;
			case "people":
				this.setPeople(f.people);
				break;
			case "notice":
				this.notice(f.code, cleanTitle(f.text));
				break;
			case "exit":
				this.exit = exitText(f.code, cleanTitle(f.signal));
		}
	}

	stateChanged(s: LinkState): void {
		switch (s.name) {
			case "connecting": {
				const again = this.state === "reconnecting";
				if (!again) this.set("connecting");
				this.bar().show(again ? "warn" : "", again ? "Reconnecting…" : "Connecting…");
				break;
			}
			case "connected":
				this.set("connected");
				break;
			case "waiting":
				this.away();
				this.set("reconnecting");
				this.bar().show(
					"warn",
					`${s.text} ${this.loss}`.trim(),
					[button("Try now", "", () => this.host.retry())],
					s.until,
				);
				break;
			case "closed":
				this.away();
				if (this.exit !== "") {
					this.set("exited");
					this.bar().show("done", this.exit, this.offers({ final: true, text: "", offer: "new" }));
				} else {
					this.set("closed");
					this.bar().show("bad", cleanTitle(s.ending.text), this.offers(s.ending));
				}
		}
	}

	/** What was typed last may be gone. */
	lost(rest: boolean): void {
		this.loss = rest ? "The rest of the paste was not sent." : "The last keys may not have arrived.";
		if (this.state !== "connected") this.bar().flash(this.loss);
	}

	/** Says why a key did nothing. */
	whyNot(): void {
		if (this.state === "connected")
			this.bar().flash(
				this.host.canType
					? "You are watching. Ask to type, or take over."
					: "You may watch this terminal, not type in it.",
			);
		else if (this.state !== "exited" && this.state !== "closed") this.bar().flash("Not connected: keys are not sent.");
	}

	takeOver(): void {
		this.host.send({ type: "take_control" });
		this.host.focus();
	}

	/** Shows what there is to say while connected: trouble first, then questions, then who is here. */
	show(): void {
		if (this.state !== "connected") return;
		const bar = this.bar();
		if (this.trouble !== "") {
			bar.show("warn", this.trouble);
			return;
		}
		if (this.role !== "driver") {
			bar.show("", presence(this.present, false, this.driver), this.wishes());
			return;
		}
		if (this.stuck) {
			bar.show("warn", "The program does not read what you type.", [
				button("Interrupt", "Send SIGINT, past what is waiting", () => {
					this.host.send({ type: "signal", name: "INT" });
					this.stuck = false;
					this.show();
					this.host.focus();
				}),
			]);
			return;
		}
		const asks = this.present.filter((p) => p.asks && !p.you);
		const first = asks[0];
		if (first !== undefined) {
			const more = asks.length > 1 ? ` (and ${asks.length - 1} more)` : "";
			bar.show("ask", `${first.name} asks to type here${more}.`, [
				button("Hand over", `Let ${first.name} type; you will watch`, () =>
					this.host.send({ type: "grant_control", viewer: first.id }),
				),
				button("Decline", "Go on typing yourself", () => {
					this.host.send({ type: "decline_control", viewer: first.id });
					this.host.focus();
				}),
			]);
			return;
		}
		const question = this.clipboard().question();
		if (question !== undefined) bar.show("ask", question.text, question.acts);
		else bar.show("", presence(this.present, true, this.driver));
	}

	/** What a viewer may do about not typing. */
	private wishes(): HTMLElement[] {
		if (!this.host.canType) return [];
		const take = button("Take over", "Type here from now on; whoever types now will watch", () => this.takeOver());
		if (this.drivesElsewhere || this.driver === "") return [take];
		const asked = this.present.some((p) => p.you && p.asks);
		const ask = asked
			? button("Stop asking", `You asked ${this.driver}`, () => this.host.send({ type: "withdraw_request" }))
			: button("Ask to type", `Ask ${this.driver} to hand over`, () => this.host.send({ type: "request_control" }));
		return [ask, take];
	}

	private away(): void {
		this.host.typing(false);
		this.present = [];
		this.greeted = false;
		this.people.show([], false);
	}

	private setRole(role: Role, driver: string): void {
		const before = this.role;
		const was = this.driver;
		this.role = role;
		this.driver = cleanTitle(driver);
		this.stuck = false;
		this.host.el.dataset.role = role;
		this.host.typing(role === "driver");
		this.people.show(this.present, role === "driver");
		this.show();
		if (this.greeted && before === "driver" && role !== "driver" && this.driver !== "")
			this.bar().flash(
				`${this.driver === was ? "You type in another window now" : `${this.driver} types now`}; you watch.`,
			);
		if (this.greeted && before !== "driver" && role === "driver") this.bar().flash("You type now.");
		this.greeted = true;
		if (this.loss !== "") this.bar().flash(`Connected again. ${this.loss}`);
		this.loss = "";
		if (role === "driver") this.host.driving();
		else this.clipboard().forget();
	}

	private setPeople(people: Person[]): void {
		const before = new Set(this.present.map((p) => p.id));
		const came = this.present.length > 0 ? people.filter((p) => !p.you && !before.has(p.id)) : [];
		this.present = people;
		this.people.show(people, this.role === "driver");
		this.show();
		const one = came[0];
		if (one !== undefined && !one.same) this.bar().flash(`${one.name} is here now.`);
	}

	private notice(code: string, text: string): void {
		if (code === "suspended" || code === "interrupted") this.trouble = text;
		if (code === "restored") this.trouble = "";
		if (code === "input_full") this.stuck = true;
		this.show();
		// What the bar shows for good is not shown a second time, passing.
		if (!["suspended", "interrupted", "input_full", "asked"].includes(code)) this.bar().flash(text);
	}

	private offers(e: Ending): HTMLElement[] {
		switch (e.offer) {
			case "new":
				return this.host.canType ? [button("New shell", "", () => this.tell("new-terminal", {}))] : [];
			case "sign-in": {
				const back = encodeURIComponent(location.pathname + location.search);
				const href = this.host.signIn ?? `${document.documentElement.dataset.root ?? "/"}sign-in?next=${back}`;
				return [element("a", { class: "tty-btn", href }, "Sign in again")];
			}
			case "watch":
				return [button("Watch it", "", () => this.host.retry())];
			case "again":
				return [button("Try again", "", () => this.host.retry())];
			default:
				return [];
		}
	}

	private set(state: string): void {
		this.state = state;
		this.host.el.dataset.state = state;
		this.tell("terminal-state", { state });
	}

	private tell(name: string, detail: Record<string, string>): void {
		this.host.el.dispatchEvent(new CustomEvent(`sandgate:${name}`, { bubbles: true, detail }));
	}
}
