// The snooze service of an older application: a scan every 100 ms adds a Bull job for each room, a worker wakes one room
// after the other. Prints the id of each room that it has woken.
import Queue from "bull";
import mongoose from "mongoose";

const fields = { status: String, snooze_time: { time: Date }, snooze_queue_in_progress: Boolean };
const Room = mongoose.model("SupportRoom", new mongoose.Schema(fields, { timestamps: true }), "support_rooms");
const queue = new Queue("support-snooze", process.env.REDIS_URL);

async function scan() {
  const due = { "snooze_time.time": { $lte: new Date() }, snooze_queue_in_progress: { $ne: true } };
  const ids = (await Room.aggregate([{ $match: due }])).map((room) => room._id);
  await Room.updateMany({ _id: { $in: ids } }, { snooze_queue_in_progress: true });
  await Promise.all(ids.map((id) => queue.add({ id }, { attempts: 10, removeOnComplete: true })));
  setTimeout(scan, 100);
}

queue.process(async ({ data: { id } }) => {
  await new Promise((resolve) => setTimeout(resolve, 20));
  const change = { $unset: { snooze_time: "" }, snooze_queue_in_progress: false, status: "open" };
  await Room.updateOne({ _id: id }, change);
  console.log(JSON.stringify(id));
});

await mongoose.connect(process.env.MONGO_DB_URL, { autoIndex: false });
await scan();
