// Relay, the older message service, at work on its streams: `producer` adds a number of messages, `consumer` receives them,
// each third one by type, works for 5 ms, acknowledges it, and requeues what is overdue. Prints the id of each message that
// was added or acknowledged.
import { randomUUID } from "node:crypto";
import Redis from "ioredis";

const [role, queue, number] = process.argv.slice(2);
const redis = new Redis(process.env.REDIS_URL);
const group = `${queue}_group`;
const metadata = `${queue}_metadata`;
const manual = `${queue}_manual`;
const levels = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];
const ackTimeout = Number(process.env.ACK_TIMEOUT_SECONDS ?? 30);
const types = ["mail", "report"];

const stream = (priority) => (priority ? `${queue}_p${priority}` : queue);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const now = () => Date.now() / 1000;
const dataOf = (fields) => JSON.parse(fields[fields.indexOf("data") + 1]);
const print = (id) => console.log(JSON.stringify(id));

async function produce() {
  for (let count = 0; count < Number(number); count += 1) {
    const priority = count % 10;
    const message = { id: randomUUID(), type: types[count % 2], payload: { count }, priority, created_at: now() };
    await redis.xadd(stream(priority), "*", "data", JSON.stringify(message));
    print(message.id);
    await sleep(5);
  }
}

async function read(name) {
  const found = await redis.xreadgroup("GROUP", group, "relay-1", "COUNT", 1, "STREAMS", name, ">");
  return found && { name, sid: found[0][1][0][0], message: dataOf(found[0][1][0][1]) };
}

async function receive() {
  for (const name of [manual, ...levels.map(stream)]) {
    const found = await read(name);
    if (found) return found;
  }
  return null;
}

// The oldest message of a type waits in a stream of its priority: it is moved to the manual stream, and received there.
async function receiveType(type) {
  for (const name of levels.map(stream)) {
    const held = new Set((await redis.xpending(name, group, "-", "+", 100).catch(() => [])).map(([sid]) => sid));
    for (const [sid, fields] of await redis.xrange(name, "-", "+", "COUNT", 100)) {
      if (!held.has(sid) && dataOf(fields).type === type && (await redis.xdel(name, sid))) {
        await redis.xadd(manual, "*", ...fields);
        return read(manual);
      }
    }
  }
  return null;
}

async function work({ name, sid, message }) {
  const known = JSON.parse((await redis.hget(metadata, message.id)) ?? "{}");
  const delivery = {
    attempt_count: (known.attempt_count ?? 0) + 1,
    dequeued_at: now(),
    created_at: message.created_at,
    consumer_id: "relay-1",
    lock_token: randomUUID(),
    _original_message: message,
  };
  await redis.hset(metadata, message.id, JSON.stringify(delivery));
  await sleep(5);
  const acknowledged = JSON.stringify({ ...message, acknowledged_at: now() });
  const done = redis.multi().xack(name, group, sid).xdel(name, sid).hdel(metadata, message.id);
  done.xadd(`${queue}_acknowledged`, "MAXLEN", "~", 100, "*", "data", acknowledged);
  await done.incr(`${queue}:stats:total_acknowledged`).srem(`${queue}:pending_ids`, message.id).exec();
  print(message.id);
}

async function requeueOverdue() {
  const lock = `${queue}:overdue_requeue_lock`;
  if (!(await redis.set(lock, "relay", "PX", 30_000, "NX"))) return;
  for (const name of [manual, ...levels.map(stream)]) {
    for (const [sid, , idle] of await redis.xpending(name, group, "-", "+", 100).catch(() => [])) {
      const [entry] = await redis.xrange(name, sid, sid);
      if (!entry) continue;
      const message = dataOf(entry[1]);
      const known = JSON.parse((await redis.hget(metadata, message.id)) ?? "{}");
      const elapsed = known.dequeued_at ? now() - known.dequeued_at : idle / 1000;
      if (elapsed < (known.custom_ack_timeout ?? ackTimeout)) continue;
      const requeue = redis.multi().srem(`${queue}:pending_ids`, message.id);
      await requeue.xadd(name, "*", ...entry[1]).xack(name, group, sid).xdel(name, sid).exec();
    }
  }
  await redis.del(lock);
}

async function consume() {
  for (const name of [manual, ...levels.map(stream)]) {
    await redis.xgroup("CREATE", name, group, "0", "MKSTREAM").catch(() => {}); // it exists
  }
  setInterval(requeueOverdue, 2000);
  for (let count = 0; ; count += 1) {
    const found = count % 3 ? await receive() : await receiveType(types[count % 2]);
    await (found ? work(found) : sleep(20));
  }
}

if (role === "producer") {
  await produce();
  redis.disconnect();
} else {
  await consume();
}
