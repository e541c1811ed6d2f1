// The rooms, sites and requests of an older application, as its Mongoose models write and read them.
// Each line of input is a JSON command, each line of output its result.
import { createInterface } from "node:readline";
import mongoose from "mongoose";

const { Schema } = mongoose;
const ObjectId = Schema.Types.ObjectId;
const thumbnails = { desktop: { type: String, default: null }, mobile: { type: String, default: null } };
const site = {
  status: { type: String, default: "DRAFT" },
  details: { name: String, thumbnails },
  thumbnail_build_in_progress: Boolean,
  thumbnail_process_started_at: Date,
};
const models = {
  room: mongoose.model(
    "SupportRoom",
    new Schema(
      {
        account_id: ObjectId,
        status: { type: String, enum: ["open", "snoozed", "closed"], default: "open" },
        assigned_to: ObjectId,
        snooze_time: { time: Date, set_by: ObjectId, set_at: Date },
        snooze_queue_in_progress: { type: Boolean, default: false },
        unsnooze_error: String,
        claim: { by: String },
      },
      { timestamps: true },
    ),
    "support_rooms",
  ),
  website: mongoose.model("AgencyWebsite", new Schema(site, { timestamps: true }), "agency_websites"),
  instasite: mongoose.model("Instasite", new Schema(site, { timestamps: true }), "instasites"),
  pulse: mongoose.model(
    "Pulse",
    new Schema(
      { account_id: ObjectId, type: String, status: String, metadata: { parent_account: ObjectId } },
      { timestamps: { createdAt: "created_at", updatedAt: "updated_at" } },
    ),
    "projects.pulse",
  ),
};

const commands = {
  create: async ({ model, fields }) => (await models[model].create(fields))._id,
  // Reads as the application does, saves what it read, and so shows that its schema accepts the document.
  resave: async ({ model, id, fields = {} }) => {
    const document = await models[model].findById(id);
    document.set(fields);
    return (await document.save()).toObject();
  },
  update: async ({ model, id, change }) => (await models[model].updateOne({ _id: id }, change)).modifiedCount,
  // The scan of the application: takes the rooms whose snooze is over and that nobody has flagged.
  scan: async ({ now }) => {
    const due = { "snooze_time.time": { $lte: new Date(now) }, snooze_queue_in_progress: { $ne: true } };
    const ids = (await models.room.aggregate([{ $match: due }])).map((room) => room._id);
    await models.room.updateMany({ _id: { $in: ids } }, { snooze_queue_in_progress: true });
    return ids;
  },
  // The work of the application on one room.
  wake: async ({ id }) => {
    const change = { $unset: { snooze_time: "" }, snooze_queue_in_progress: false, status: "open" };
    return (await models.room.updateOne({ _id: id }, change)).modifiedCount;
  },
};

await mongoose.connect(process.env.MONGO_DB_URL, { autoIndex: false });
console.log(JSON.stringify("connected"));
for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  const result = await commands[command](options).catch((error) => ({ error: error.message, code: error.code }));
  console.log(JSON.stringify(result ?? null));
}
