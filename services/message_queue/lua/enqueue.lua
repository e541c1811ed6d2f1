#!lua
-- Appends messages to the streams of their priorities.
--
-- KEYS[1]  queue name
-- ARGV     six per message: id, type, type as JSON, priority, options as JSON members ('"name":1,' or ''),
--          payload as JSON
-- Returns  for each message 1, or 0 if its id exists, also in the history; it is not added then
--
-- Atomic, so that the check of the id and the write are one step: a retried enqueue adds one message. Without
-- allow-oom, so that a full server refuses the whole call.

-- Adds the entry of a message. Returns its stream, its id, and the members between the message's id and its payload.
local function add_entry(id, _, kind_json, priority, options, payload)
  local about = ',"type":' .. kind_json .. ',"priority":' .. priority .. ',"created_at":' .. NOW_TEXT .. ',' .. options
  local stream = priority == '0' and QUEUE or QUEUE .. '_p' .. priority
  local sid = redis.call('XADD', stream, '*', 'data', '{"id":"' .. id .. '"' .. about .. '"payload":' .. payload .. '}')
  return stream, sid, about
end

if #ARGV == 6 and redis.call('EXISTS', TYPES) == 0 and redis.call('HEXISTS', RECORDS, ARGV[1]) == 0 then
  local _, sid = add_entry(unpack(ARGV))
  redis.call('HSET', RECORDS, ARGV[1], packed_location(ARGV[4], sid))
  announce_with('enqueue', '{"count":1,"ids":["' .. ARGV[1] .. '"]}')
  return { 1 }
end

-- ---- Several messages
--
-- One HMGET, HSET and, per type if type indexes are kept, ZADD for all messages: a call with the largest batch takes less
-- than 10 ms. Messages of further types than MAX_INDEXED are indexed by the next consumer that asks for a type.

local ids, is_given, is_any_there = {}, {}, false
for i = 1, #ARGV, 6 do
  ids[#ids + 1] = ARGV[i]
  is_any_there = is_any_there or is_given[ARGV[i]] -- an id may be there twice
  is_given[ARGV[i]] = true
end
local known = redis.call('HMGET', RECORDS, unpack(ids))
for i = 1, #ids do
  is_any_there = is_any_there or known[i]
end
local answers, records = {}, {}
if not is_any_there and not is_index_kept() then
  for i, id in ipairs(ids) do
    local first = i * 6 - 5
    local _, sid = add_entry(unpack(ARGV, first, first + 5))
    records[i * 2 - 1], records[i * 2] = id, packed_location(ARGV[first + 3], sid)
    answers[i] = 1
  end
  redis.call('HSET', RECORDS, unpack(records))
  announce_ids('enqueue', ids)
  return answers
end

-- ---- Ids that exist, and type indexes

local MAX_INDEXED = 100 -- types

local MAX_UNLOCATED = 3600 -- seconds since the delivery by another program, whose records do not name their entries

-- Returns true if the message of a record exists. Deletes the record if another consumer has deleted the entry.
local function is_stored(id)
  local record = record_of(id)
  if record and not record.sid then
    return NOW - (record.dequeued_at or 0) < MAX_UNLOCATED -- heal.lua soon finds the entry, if there is one
  end
  return record and not forget_if_lost(id, record)
end

local is_known = {}
for i, record in ipairs(known) do
  is_known[ids[i]] = record and is_known[ids[i]] ~= false and is_stored(ids[i])
end

local added, index_members, indexed, is_any_left = {}, {}, 0, false
for i, id in ipairs(ids) do
  if is_known[id] then
    answers[i] = 0
  else
    is_known[id] = true
    local first = i * 6 - 5
    local stream, sid, about = add_entry(unpack(ARGV, first, first + 5))
    local kind, priority = ARGV[first + 1], ARGV[first + 3]
    records[#records + 1] = id
    local is_indexed = is_index_kept() and (index_members[kind] or indexed < MAX_INDEXED)
    is_any_left = is_any_left or is_index_kept() and not is_indexed
    if is_indexed then
      indexed = indexed + (index_members[kind] and 0 or 1)
      local location = '"stream":"' .. stream .. '","sid":"' .. sid .. '"'
      records[#records + 1] = OWN_RECORD .. location .. about .. '"attempt_count":0}'
      index_members[kind] = index_members[kind] or {}
      table.insert(index_members[kind], -priority)
      table.insert(index_members[kind], index_member(id, { sid = sid }))
    else
      records[#records + 1] = packed_location(priority, sid)
    end
    answers[i] = 1
    added[#added + 1] = id
  end
end
if #added > 0 then
  redis.call('HSET', RECORDS, unpack(records))
  for kind, members in pairs(index_members) do
    add_to_index(kind, members)
  end
  if is_any_left then
    redis.call('SET', TYPES, 'some')
  end
  announce_ids('enqueue', added)
end
return answers
