// Makes real requests and prints what it reads of each response, as one JSON document.

import { createClient, type Schemas } from "../src/index.ts";

const [baseUrl, apiKey] = process.argv.slice(2);
if (baseUrl === undefined || apiKey === undefined) throw new Error("usage: requests.ts BASE_URL API_KEY");
const client = createClient(baseUrl, { apiKey });

const message: Schemas["NewMessageBody"] = { type: "mail", payload: { to: "ada@example.org" }, id: "folder/mail-1" };
const invalid = await client.POST("/api/queue/message", { body: message });
const added = await client.POST("/api/queue/message", { body: { ...message, id: "mail-1" } });
const received = await client.GET("/api/queue/message", { params: { query: { type: "mail", timeout: 5 } } });
const lockToken = received.data?.lock_token ?? null;
const touched = await client.PUT("/api/queue/message/{id}/touch", {
  params: { path: { id: "mail-1" } },
  body: { lock_token: lockToken, extend_seconds: 60 },
});
const acknowledged = await client.POST("/api/queue/ack", { body: { id: "mail-1", lock_token: lockToken } });
const empty = await client.GET("/api/queue/message");

const job = await client.POST("/api/jobs", { body: { name: "test.send_invoice", arguments: [42], delay_seconds: 60 } });
const jobs = await client.GET("/api/jobs", { params: { query: { state: "pending", limit: 1 } } });
const system = await client.GET("/api/systems/{name}", { params: { path: { name: "support-snooze" } } });
const stranger = await createClient(baseUrl).GET("/api/overview");

console.log(
  JSON.stringify({
    invalid: invalid.error,
    added: added.data?.id,
    payload: received.data?.payload,
    touched: touched.data?.extended_by,
    acknowledged: acknowledged.response.status,
    empty: empty.error?.message,
    job: job.data?.job.arguments,
    jobs: jobs.data?.jobs.map((one) => one.name),
    system: system.data?.title,
    stranger: stranger.response.status,
  }),
);
