// The pages' elements, and what the scripts keep on them.

/** Elements of the templates by id; null where a page, a role or a setting leaves one out. */
type ElementsById =
  & Record<
    "all-off" | "announced" | "attention" | "bounds" | "empty" | "entries" | "found" | "further" | "health" | "leader" |
    "leaderless" | "main" | "more" | "names" | "nothing" | "past" | "pauses" | "picked" | "picked-count" |
    "problem" | "queues" | "rows" | "scans" | "scans-where" | "schedule" | "searching" | "state" | "status" | "strip" |
    "systems" | "tabs" | "toasts" | "types" | "unconsumed" | "views" | "where" | "workers",
    HTMLElement
  >
  & Record<"no-hooks", HTMLElement | null>
  & Record<
    "columns" | "display" | "export" | "next" | "previous" | "save-view" | "scans-more" | "scans-sort" | "stop",
    HTMLButtonElement
  >
  & Record<
    "clear" | "create" | "delete" | "move" | "pause" | "replay" | "replay-all" | "retry" | "retry-all" | "run" |
    "scan",
    HTMLButtonElement | null
  >
  & {
    filter: Form;
    find: HTMLInputElement;
    "filter-name": HTMLSelectElement;
    "filter-system": HTMLSelectElement;
    list: HTMLTableElement;
    "pick-all": HTMLInputElement | null;
    searched: HTMLProgressElement;
  };

type Control = HTMLInputElement;
type Form = { elements: Iterable<Control> & Record<string, Control | undefined> } & HTMLFormElement;

type Listener = (event: any) => unknown;
/** Attributes and `on…` listeners; undefined, null and false are left out. */
type Attributes = Record<string, string | number | boolean | null | undefined | Listener>;
type Child = Node | string | number | null | undefined | false | Child[];

/** `deadline` in ms, null if there is none; `format` returns the text for the ms left. */
type Countdown = HTMLElement & { deadline: number | null; format: (left: number) => string };

/** The button's text, what it does, its class. */
type Action = [text: string, act: () => unknown, kind?: string];

interface Field {
  name: string;
  label: string;
  kind?: "text" | "number" | "area" | "select" | "check" | "datetime-local";
  value?: string | number | boolean;
  hint?: string;
  options?: string[][];
  isNeeded?: boolean;
  /** Returns what is wrong with a value, or an empty text. */
  check?(value: string): string;
}

/** `act` gets the values of the fields and a signal of the closing of the dialog, and returns the text to show. */
interface Question {
  title: string;
  text?: string;
  fields?: Field[];
  verb: string;
  kind?: string;
  /** The name that has to be typed, if any. */
  typed?: { name: string } | false;
  act(values: Record<string, string>, signal: AbortSignal): Promise<Child | void>;
}

/** Of a request: `parse` reads the text of the answer. */
interface Options {
  signal?: AbortSignal;
  parse?(text: string): any;
}

interface RecordHandlers<T> {
  read(id: string): Promise<T>;
  describe(record: T): Child;
  actionsOf(record: T): (Action | false)[];
}

interface EventHandlers {
  event(data: any): void;
  /** Read what events do not contain: first, and after a gap. */
  reload(): void;
  parse?(text: string): any;
}

type Values = Record<string, string>;

/** What somebody may choose for this browser. */
type Choice = "times" | "theme";

interface Page<Row> {
  rows: Row[];
  cursor: string | null;
  total?: number;
  isPartial?: boolean;
  isCut?: boolean; // rows are left out that no cursor leads to
  progress?: Progress;
}

/** Of a search that is not at its end. */
interface Progress {
  searched: number;
  total: number;
}

interface ListHandlers<Row> {
  load(values: Values, options: Options): Promise<Page<Row>>;
  search?(values: Values, options: Options): AsyncGenerator<{ name: string; data: any }>;
  id(row: Row): string;
  cells(row: Row): Child;
}

interface Reading {
  wanted: string;
  controller: AbortController;
}

interface Listed<Row> {
  row: Row;
  json: string;
}

interface Drawn {
  tr: HTMLElement;
  json: string;
}

// Selectors of which the templates are known to have an element.
interface ParentNode {
  querySelector<K extends keyof HTMLElementTagNameMap>(selectors: K): HTMLElementTagNameMap[K];
  querySelector(selectors: string): HTMLElement | null;
  querySelectorAll(selectors: ".countdown"): NodeListOf<Countdown>;
  querySelectorAll(selectors: string): NodeListOf<HTMLElement>;
}

interface Element {
  closest(selectors: "nav" | ".pages" | ".sheet"): HTMLElement;
  /** The JSON of what is shown in it. */
  json?: string;
}

interface JSON {
  rawJSON?(text: string): unknown;
  isRawJSON?(value: unknown): value is { rawJSON: string };
  parse(text: string, reviver: ((key: string, value: any, context: { source: string }) => unknown) | undefined): any;
}

type Severity = "critical" | "warning";
/** How bad it is, what is wrong, what to do, the page that lists the items. */
interface Need {
  severity: Severity;
  text: string;
  action?: string;
  page?: string | null;
}
/** The problems of a system or component, the worst first, and its page. */
interface Urgent {
  title: string;
  page?: string;
  problems: Need[];
}

interface StateTexts {
  count: "due" | "in_progress" | "stuck" | "failed";
  verb?: string;
  all?: string;
  title: string;
  text: string;
  next?: string;
}

/** Where a value stands, in percent from the bottom, and the values that are written next to the axis. */
interface Scale {
  place(value: number): number;
  ticks: number[];
}

interface Series {
  name: string;
  kind: string;
  values: (number | null)[];
}

interface Chart {
  title: string;
  /** The zone of the steps is added. */
  unit: string;
  begins: Moment;
  /** Of one step. */
  seconds: number;
  series: Series[];
  summary: string;
  marks?: Mark[];
  isLog?: boolean;
  hasTable?: boolean;
  format?(value: number): string;
  /** Of the values next to the axis. */
  formatTick?(value: number): string;
}
