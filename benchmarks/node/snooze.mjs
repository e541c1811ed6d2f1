// Support snooze as a Node service does it, with a job of Bull or BullMQ for each room: `node snooze.mjs bull|bullmq N`,
// which works on N jobs at a time. Reads `scan` or the id of a room, and answers, as `sender.py`.
import { createInterface } from "node:readline";

import Bull from "bull";
import { Queue, Worker } from "bullmq";
import Redis from "ioredis";
import mongoose from "mongoose";

const [library, concurrency] = [process.argv[2], Number(process.argv[3])];
const { REDIS_URL, MONGO_DB_URL, SOCKETIO_CHANNEL } = process.env;
const OPTIONS = { attempts: 10, backoff: { type: "exponential", delay: 1000 }, removeOnComplete: true };

const ObjectId = mongoose.Schema.Types.ObjectId;
const fields = {
  account_id: ObjectId,
  status: String,
  snooze_time: { time: Date, set_by: ObjectId, set_at: Date },
  snooze_queue_in_progress: Boolean,
  unsnoozed_at: Date,
};
const Room = mongoose.model("SupportRoom", new mongoose.Schema(fields), "support_rooms");
const redis = new Redis(REDIS_URL);

async function wake({ data: { id } }) {
  const room = await Room.findById(id);
  if (!room) return { skipped: true, reason: "Room not found" };
  const now = new Date();
  const set = { snooze_queue_in_progress: false, status: "open", unsnoozed_at: now };
  await Room.updateOne({ _id: room._id }, { $unset: { snooze_time: "" }, ...set });
  const data = { room_id: room._id, action: "unsnoozed", timestamp: now };
  const message = { method: "emit", event: "support_room_updated", data, room: `support-${room.account_id}` };
  await redis.publish(SOCKETIO_CHANNEL, JSON.stringify({ ...message, namespace: "/", host_id: "node" }));
  return { success: true, room_id: room._id, unsnoozed_at: now };
}

function start() {
  if (library === "bull") {
    const queue = new Bull("support-snooze", REDIS_URL);
    queue.process(concurrency, wake);
    return (id) => queue.add({ id }, OPTIONS);
  }
  const connect = () => new Redis(REDIS_URL, { maxRetriesPerRequest: null });
  const queue = new Queue("support-snooze", { connection: connect() });
  new Worker("support-snooze", wake, { connection: connect(), concurrency });
  return (id) => queue.add("unsnooze", { id }, OPTIONS);
}

async function scan() {
  const due = { "snooze_time.time": { $lte: new Date() }, snooze_queue_in_progress: { $ne: true } };
  const rooms = await Room.aggregate([{ $match: due }]);
  const ids = rooms.map((room) => room._id);
  await Room.updateMany({ _id: { $in: ids } }, { snooze_queue_in_progress: true });
  await Promise.all(ids.map(add));
}

await mongoose.connect(MONGO_DB_URL, { autoIndex: false });
const add = start();
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const began = Date.now() / 1000;
  if (line === "scan") await scan();
  else await add(line);
  console.log(JSON.stringify({ began }));
}
process.exit();
