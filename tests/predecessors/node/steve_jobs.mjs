// SteveJobs, an older package for jobs in `jobs_data`: adds a number of jobs of a name, and runs the pending jobs of this
// name one after the other. Prints the id of each job that it has run.
import { randomBytes } from "node:crypto";
import mongoose from "mongoose";

const [name, number] = process.argv.slice(2);
const serverId = "jqJ8AGsWfQqDTKx4D";
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

await mongoose.connect(process.env.MONGO_DB_URL);
const jobs = mongoose.connection.collection("jobs_data");

for (let count = 0; count < Number(number); count += 1) {
  const now = new Date();
  const times = { created: now, due: now };
  const job = { name, ...times, serverId, state: "pending", priority: 0, data: {}, arguments: [], history: [] };
  await jobs.insertOne({ _id: randomBytes(16).toString("hex").slice(0, 17), ...job });
}

for (;;) {
  const next = { name, state: "pending", due: { $lte: new Date() } };
  const job = await jobs.findOne(next, { sort: { priority: -1, created: 1 } });
  if (job) {
    await sleep(100);
    const entry = { date: new Date(), state: "success", serverId };
    await jobs.updateOne({ _id: job._id }, { $set: { state: "success" }, $push: { history: entry } });
    console.log(JSON.stringify(job._id));
  } else {
    await sleep(100);
  }
}
