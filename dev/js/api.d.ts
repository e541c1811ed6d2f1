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

interface System {
  name: string;
  title: string;
  page: string;
  flag: string | null;
  is_on: boolean;
  due: number | null;
  in_progress: number | null;
  stuck: number | null;
  failed: number | null;
  lag_seconds: number | null;
  done_per_minute: number | null;
  failed_per_minute: number | null;
  errors: number | null;
  last_scan: ScanResult | null;
  next_scan_at: Moment | null;
  is_running: boolean;
  is_starting: boolean;
  idle: "paused" | "dry run" | null;
  problems: string[];
  pages: Record<string, string>;
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
  workers: { name: string }[] | null;
  problems: string[];
  systems: System[];
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
  name: string;
  state: JobState;
  arguments: unknown[];
  due: Moment | null;
  waiting?: Moment | null;
  priority: number;
  attempts: number;
  created: Moment;
  updated: Moment;
  last_error?: string | null;
  progress?: { percent: number; note?: string } | null;
  claim?: { claimed_until: Moment } | null;
  repetition?: { every_ms?: number; cron?: string };
  history: JobAttempt[];
}

interface JobPage {
  jobs: Job[];
  cursor: string | null;
  is_partial: boolean;
}

interface JobQueue {
  name: string;
  states: Record<JobState, number>;
  is_paused: boolean;
  running: { id: string; claimed_until: Moment } | null;
  oldest_due: Moment | null;
  next_due: Moment | null;
}

interface JobStatus {
  queues: JobQueue[];
  leader: { heartbeat: Moment } | null;
}

type JobEvent = { id: string } & ({ kind: "deleted"; job: null } | { kind: "changed"; job: Job });
