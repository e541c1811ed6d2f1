// Jobs of Agenda: `node agenda_jobs.mjs MONGO_URL NUMBER`. Stores them, prints `ready`, waits for a line, runs them all in
// order, and prints their numbers.

import { once } from "node:events";
import { Agenda } from "agenda";

const [url, count] = [process.argv[2], Number(process.argv[3])];
const NAME = "n0";
const agenda = new Agenda({ db: { address: url, collection: "agenda_jobs" }, processEvery: 100, defaultLockLimit: 0 });
await once(agenda, "ready");
const jobs = agenda._collection;
const begin = Date.now() - 3600000;
await jobs.deleteMany({});
await jobs.insertMany(Array.from({ length: count }, (_, number) => ({
  name: NAME, type: "normal", priority: 0, data: { number }, nextRunAt: new Date(begin + number), lastModifiedBy: null,
})));
const ran = [];
agenda.define(NAME, { concurrency: 1 }, async (job) => { ran.push(job.attrs.data.number); });
console.log("ready");
await once(process.stdin, "data");
await agenda.start();
while (await jobs.countDocuments({ lastFinishedAt: { $exists: false } }, { limit: 1 })) await new Promise((wake) => setTimeout(wake, 20));
console.log(JSON.stringify(ran));
process.exit();
