// A Bull queue of an older application: adds jobs, and has a worker if the second argument is "worker".
import Queue from "bull";

const [name, role] = process.argv.slice(2);
const queue = new Queue(name, process.env.REDIS_URL);
if (role === "worker") {
  queue.process(async () => null);
} else {
  await queue.add({ id: "65b9f0a2c3d4e5f6a7b8c9d0" }, { attempts: 10, backoff: { type: "exponential", delay: 1000 } });
  await queue.add({ id: "65b9f0a2c3d4e5f6a7b8c9d1" }, { delay: 3_600_000 });
}
await queue.isReady();
console.log(JSON.stringify("ready"));
