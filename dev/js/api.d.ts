// The answers of the API that the pages read.

/** Seconds since 1970 (message queue) or ISO 8601. */
type Moment = string | number;

interface Failure {
  message: string;
  field?: string;
}

// Systems

interface Leader {
  holder: string;
  since: Moment;
  lease_left_seconds: number;
  epoch: number;
}

interface ScanResult {
  at: Moment;
  found: number;
  claimed: number;
  enqueued: number;
  errors: number;
  duration_ms: number;
  is_paused: boolean;
  error?: string;
}

interface Scan extends ScanResult {
  id: string;
  noted: Record<string, number>;
}

interface ScanPage {
  scans: Scan[];
  cursor: string | null;
}

/** What is wrong with a system or a component, and what to do. */
interface HealthProblem {
  system: string;
  rule: string;
  text: string;
  page: string | null;
  action: string;
}

/** Since when, by whom and why something is paused. */
interface Pause {
  at: Moment | null;
  by: string | null;
  reason: string | null;
}

interface System {
  name: string;
  title: string;
  page: string;
  pages: Record<string, string>;
  flag: string | null;
  is_on: boolean;
  due: number | null;
  in_progress: number | null;
  stuck: number | null;
  failed: number | null;
  lag_seconds: number | null;
  done_per_minute: number | null;
  failed_per_minute: number | null;
  latency: Latency | null;
  duration_names: Record<Measure, string>;
  errors: number | null;
  last_scan: ScanResult | null;
  next_scan_at: Moment | null;
  is_running: boolean;
  is_starting: boolean;
  idle: "paused" | "dry run" | null;
  pause: Pause | null;
  problems: HealthProblem[];
  numbers: Record<string, number>;
}

interface SystemDetails extends System {
  hooks: boolean;
  trigger: string | null;
}

/** Why a server does not answer. */
interface ServerProblems {
  mongodb: string | null;
  redis: string | null;
}

interface Overview {
  servers: ServerProblems;
  leader: Leader | null;
  workers: { name: string; paused: string | null }[] | null;
  problems: HealthProblem[];
  systems: System[];
}

type Measure = "due_to_done" | "wait" | "run";

interface Percentiles {
  count: number;
  p50_ms: number;
  p95_ms: number;
  p99_ms: number;
}

interface Latency extends Record<Measure, Percentiles | null> {
  on_time: { of: Measure; within_ms: number; share: number } | null;
}

/** What happened at a time. */
interface Mark {
  kind: "deployment" | "leader" | "outage";
  at: Moment;
  until: Moment | null;
  text: string;
  by: string | null;
}

type HistoryRange = "1h" | "24h" | "7d" | "30d" | "90d";

/** What a system did in a range; null where nothing is known. */
interface PastOfSystem {
  begins_at: Moment;
  step_seconds: number;
  outcomes: Record<"done" | "failed" | "retried", (number | null)[]>;
  percentiles: Record<Measure, Record<"p50_ms" | "p95_ms" | "p99_ms", (number | null)[]>>;
  latency: Latency;
  duration_names: Record<Measure, string>;
  marks: Mark[];
}

/** Counts per bucket, oldest first. */
interface OutcomeCounts {
  done: number[];
  failed: number[];
  retried: number[];
}

interface SystemsHistory {
  begins_at: Moment;
  bucket_seconds: number;
  systems: Record<string, OutcomeCounts | null>;
}

interface ScheduleEntry {
  name: string;
  title: string;
  description: string;
  flag: string | null;
  task: string;
  is_on: boolean;
  trigger: string | null;
  period_seconds: number;
  cron: string | null;
  next_run_at: Moment | null;
  is_running: boolean;
  last_run: ScanResult | null;
  last_runs: ScanResult[];
}

interface WorkerTask {
  task: string | null;
  task_id: string | null;
  tasks: number;
  since: Moment;
  item: string | null;
  job_name: string | null;
  page: string | null;
}

interface WorkerProcess {
  pid: number;
  memory_bytes: number | null;
  running: WorkerTask[];
}

interface OneWorker {
  name: string;
  pid: number;
  seen_at: Moment;
  queues: string[] | null;
  release: string | null;
  paused: string | null;
  pool: string | null;
  size: number | null;
  busy: number | null;
  done_per_minute: number | null;
  memory_bytes: number | null;
  processes: WorkerProcess[];
}

interface Workers {
  workers: OneWorker[];
  count: number;
  queues_without_worker: { queue: string; title: string }[];
}

interface Schedule {
  entries: ScheduleEntry[];
  leader: Leader | null;
}

type ItemState = "due" | "in-progress" | "stuck" | "failed";

interface Item {
  id: string;
  title: string;
  state: ItemState;
  due_at: Moment | null;
  since: Moment | null;
  reason: string | null;
  attempts: number;
  next_at: Moment | null;
}

interface TimelineEvent {
  at: Moment;
  event: string;
  detail: string;
  worker?: string;
  duration_ms?: number;
  error?: string;
  task_id?: string;
}

/** An item, a message or a job, and why it is in its state. */
interface Found {
  system: string;
  kind: string;
  id: string;
  title: string;
  label: string;
  tone: "good" | "neutral" | "warn" | "bad";
  answer: string;
  due_at: Moment | null;
  page: string;
  document: string;
  retry: string | null;
  retry_body: object;
  timeline: TimelineEvent[];
  has_whole_timeline: boolean;
}

/** `unread` says by system why it could not be searched. */
interface Diagnosis {
  found: Found[];
  unread: Record<string, string>;
}

interface ItemPage {
  items: Item[];
  cursor: string | null;
}

interface MatchCount {
  count: number;
  is_complete: boolean;
}

interface RoomUpdate {
  room_id: string;
  action: string;
  timestamp: Moment;
}

/** Acknowledgement of `join`. */
interface Joined {
  joined?: string[];
  error?: string;
  message?: string;
}

// Message queue

type MessageState = "main" | "processing" | "dead" | "acknowledged" | "archived";
type MessageCounts = Record<MessageState, number>;

interface Message {
  id: string;
  type: string;
  priority: number;
  payload: unknown;
  created_at: number;
  attempt_count: number;
  custom_ack_timeout?: number;
  custom_max_attempts?: number;
  consumer_id?: string;
  lock_token?: string;
  dequeued_at?: number;
  processing_started_at?: number;
  deadline_at?: number;
  failed_at?: number;
  acknowledged_at?: number;
  last_error?: string;
  undecodable?: true;
  place?: MessageState;
}

interface MessagePage {
  messages: Message[];
  pagination: { page: number; total: number; total_pages: number; cursor: string | null; is_partial: boolean };
}

interface QueueConfig {
  ack_timeout_seconds: number;
  max_attempts: number;
  max_priority_levels: number;
}

interface QueueEvent {
  type: string;
  payload: { ids?: string[]; dlq_ids?: string[] };
  messages?: Message[];
  counts?: MessageCounts;
}

// Jobs

type JobState = "pending" | "executing" | "failure" | "success" | "canceled";

interface JobAttempt {
  at: Moment;
  state: JobState;
  attempt?: number;
  worker?: string;
  took_ms?: number;
  error?: string;
}

interface Job {
  _id: string;
  name: string | null;
  state: JobState | null;
  arguments: unknown[] | null;
  due: Moment | null;
  waiting?: Moment | null;
  priority: number | null;
  attempts: number | null;
  created: Moment | null;
  updated: Moment | null;
  last_error?: string | null;
  progress?: { percent: number; note?: string } | null;
  claim?: { claimed_until: Moment; ends_at?: Moment; canceled_at?: Moment } | null;
  repetition?: { every_ms?: number; cron?: string } | null;
  history: JobAttempt[] | null;
}

interface JobPage {
  jobs: Job[];
  cursor: string | null;
  is_partial: boolean;
}

interface JobQueue {
  name: string;
  states?: Record<JobState, number>; // once they are counted
  is_paused: boolean;
  pause: Pause | null;
  running: { id: string; claimed_until: Moment } | null;
  oldest_due: Moment | null;
  next_due: Moment | null;
}

interface JobStatus {
  queues: JobQueue[];
  leader: { heartbeat: Moment } | null;
}

type JobEvent = { id: string } & ({ kind: "deleted"; job: null } | { kind: "changed"; job: Job });

// The audit

interface AuditedChange {
  id: string;
  at: Moment;
  who: string;
  via: "page" | "api" | "cli";
  address: string;
  action: string;
  system: string | null;
  ids: string[];
  total: number | null;
  filter: Record<string, unknown> | null;
  detail: string;
  count: number | null;
  before: Record<string, unknown> | null;
  after: Record<string, unknown> | null;
  outcome: "unknown" | "done" | "failed";
  error: string | null;
  undo_until: Moment | null;
  page: string | null;
}

interface AuditPage {
  entries: AuditedChange[];
  cursor: string | null;
}

// Failures

interface FailureGroup {
  id: string;
  kind: "message" | "item" | "job" | "broker";
  system: string;
  name: string;
  reason: string;
  sample: string;
  count: number;
  first_at: Moment;
  last_at: Moment;
  by_hour: number[];
  page: string | null;
}

interface GroupedFailures {
  groups: FailureGroup[];
  of: number;
  lists: { title: string; read: number; is_complete: boolean; problem: string | null }[];
}
