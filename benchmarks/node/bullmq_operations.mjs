// A BullMQ queue for the benchmarks: each line of the input is an operation and a count, each line of the output how many
// jobs it was done to, and the seconds.
import { createInterface } from "node:readline";
import Redis from "ioredis";
import { Queue, Worker } from "bullmq";

const KEPT = 100; // completed jobs, as many as acknowledged messages
const connection = new Redis(process.env.REDIS_URL, { maxRetriesPerRequest: null });
const queue = new Queue("bullmq", { connection });
const worker = new Worker("bullmq", null, { connection, lockDuration: 30_000 });
const held = [];

const job = (number) => ({
  name: "send_mail",
  data: { to: `user${number}@example.org`, template: "welcome", number },
  opts: { jobId: `message-${number}`, removeOnComplete: { count: KEPT } },
});
const operations = {
  async enqueue(number) {
    const { name, data, opts } = job(number);
    await queue.add(name, data, opts);
  },
  async dequeue() {
    const taken = await worker.getNextJob("token");
    if (!taken) throw new Error("no job waits");
    held.push(taken);
  },
  acknowledge: () => held.shift().moveToCompleted(null, "token", false),
};

await Promise.all([queue.waitUntilReady(), worker.waitUntilReady()]);
console.log(JSON.stringify("ready"));
for await (const line of createInterface({ input: process.stdin })) {
  const [name, count] = line.split(" ");
  if (name === "enqueue") held.length = 0;
  const began = performance.now();
  for (let number = 0; number < Number(count); number += 1) await operations[name](number);
  console.log(JSON.stringify({ count: Number(count), seconds: (performance.now() - began) / 1000 }));
}
process.exit(0);
