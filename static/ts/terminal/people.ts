// Who is at a terminal: what the bar says of them, who asks for the keyboard, and the list from which it is handed over.
import { button, element, Fold } from "./page";
import type { Person } from "./protocol";

/** The names in a list, the first ones at length. */
function names(list: Person[]): string {
	const first = list.slice(0, 3).map((p) => (p.same ? "you (another window)" : p.name));
	return list.length > 3 ? `${first.join(", ")} and ${list.length - 3} more` : first.join(", ");
}

/** What the bar says of who is there. */
export function presence(people: Person[], driving: boolean, driver: string): string {
	const others = people.filter((p) => !p.you);
	if (driving) return others.length === 0 ? "Connected" : `You type — watching: ${names(others)}`;
	const who = others.find((p) => p.drives);
	const types = who?.same ? "you type in another window" : driver === "" ? "nobody types" : `${driver} types`;
	const rest = others.filter((p) => !p.drives);
	return `Watching — ${types}${rest.length > 0 ? `; also here: ${names(rest)}` : ""}`;
}

/** The list of who is there, folded away until it is wanted. */
export class PeopleList {
	private readonly fold = new Fold("tty-people");
	readonly root = this.fold.root;

	constructor(private readonly handOver: (id: number) => void) {
		this.root.hidden = true;
	}

	show(people: Person[], driving: boolean): void {
		this.root.hidden = people.length < 2;
		if (this.root.hidden) this.root.open = false;
		this.fold.fill(
			`${people.length} here`,
			people.map((p) => {
				const what = p.drives ? "types" : p.asks ? "asks to type" : p.mayType ? "watches" : "may only watch";
				const name = p.you ? `${p.name} (you)` : p.same ? `${p.name} (you, another window)` : p.name;
				const line = element("span", {}, element("bdi", {}, name), element("span", { class: "tty-does" }, what));
				if (driving && !p.you && p.mayType) {
					line.append(
						button("Hand over", `Let ${p.name} type here; you will watch`, () => {
							this.root.open = false;
							this.handOver(p.id);
						}),
					);
				}
				return line;
			}),
		);
	}
}
