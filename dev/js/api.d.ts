// The answers of the API that the pages read, as OpenAPI describes them: `make clients` renews the schemas.

type Schemas = import("../../clients/typescript/src/schema").components["schemas"];

/** Seconds since 1970 (message queue) or ISO 8601. */
type Moment = string | number;

interface Failure {
  message: string;
  field?: string;
}

// Systems

type Diagnosis = Schemas["Diagnosis"];
type Found = Schemas["Explanation"];
type Item = Schemas["Item"];
type ItemPage = Schemas["Items"];
type ItemState = Item["state"];
type Latency = Schemas["Latency"];
type Leader = Schemas["Leader"];
type Mark = Schemas["ChartMark"];
type MatchCount = Schemas["Count"];
type Measure = Schemas["OnTime"]["of"];
type OneWorker = Schemas["OneWorker"];
/** By outcome, counts per bucket, oldest first. */
type OutcomeCounts = Record<string, number[]>;
type Overview = Schemas["Overview"];
type PastOfSystem = Schemas["SystemHistory"];
type Pause = Schemas["PauseState"];
type Scan = Schemas["Scan"];
type ScanPage = Schemas["Scans"];
type ScanResult = Schemas["ScanRun"];
type Schedule = Schemas["Schedule"];
type ScheduleEntry = Schemas["ScheduleEntry"];
type ServerProblems = Schemas["Servers"];
type System = Schemas["SystemState"];
type SystemsHistory = Schemas["History"];
type TimelineEvent = Schemas["TimelineEvent"];
type Workers = Schemas["Workers"];
type WorkerProcess = Schemas["WorkerProcess"];
type WorkerTask = Schemas["WorkerTask"];

type HistoryRange = "1h" | "24h" | "7d" | "30d" | "90d";

// Message queue

type MessageState = "main" | "processing" | "dead" | "acknowledged" | "archived";
type MessageCounts = Record<MessageState, number>;
type Message = Schemas["DeliveredMessage"] & { place?: MessageState };
type MessagePage = Schemas["MessageList"];
type QueueConfig = Schemas["QueueConfig"];

interface QueueEvent {
  type: string;
  payload: { ids?: string[]; dlq_ids?: string[] };
  messages?: Message[];
  counts?: MessageCounts;
}

// Jobs

type Job = Schemas["Job"];
type JobPage = Schemas["Jobs"];
type JobState = Schemas["JobState"];
type JobStatus = Schemas["JobsStatus"];
/** Its `states` are missing until they are counted. */
type JobQueue = Schemas["JobQueue"] & Partial<Schemas["QueueState"]>;
type JobEvent = { id: string } & ({ kind: "deleted"; job: null } | { kind: "changed"; job: Job });

// The audit

type AuditPage = Schemas["AuditPage"];
type AuditedChange = Schemas["AuditedChange"];

// Failures

type FailureGroup = Schemas["FailureCounts"];
type GroupedFailures = Schemas["GroupedFailures"];
