-- Waiting messages by their type: the index, from which consumers take one type, and the messages of paused types.

-- The index of a type: highest priority first, then stream order.

local function index_member(id, record)
  return sortable(record.sid) .. ':' .. id
end

local is_cleaned, indexes_cleaned = {}, 0

-- Drops members whose messages other consumers have deleted; they start with the first, as this queue does. A batch may
-- have many types: the indexes that it leaves are cleaned later.
local function drop_stale_members(key)
  if not is_cleaned[key] and indexes_cleaned < MAX_CLEANED then
    is_cleaned[key], indexes_cleaned = true, indexes_cleaned + 1
    for _, member in ipairs(redis.call('ZRANGE', key, 0, 1)) do
      if redis.call('HEXISTS', RECORDS, string.match(member, ':(.*)$')) == 0 then
        redis.call('ZREM', key, member)
      end
    end
  end
end

local function add_to_index(kind, members)
  local key = QUEUE .. ':type:' .. kind
  drop_stale_members(key)
  redis.call('ZADD', key, unpack(members))
end

local index_kept

local function is_index_kept()
  if index_kept == nil then
    index_kept = redis.call('EXISTS', TYPES) == 1
  end
  return index_kept
end

-- Adds a waiting message to the index of its type, if type indexes are kept; its record must be saved then.
local function index(id, record)
  record.unindexed = not is_index_kept() or nil
  if not record.unindexed then
    add_to_index(record.type, { -record.priority, index_member(id, record) })
  end
end

-- Pauses: a message of a paused type is parked when its turn comes. Its entry stays where it is, acknowledged for the
-- group, which has passed over it; it is still waiting. Its position is kept in a sorted set of its type, in stream order,
-- and it is claimed for the group once the type is resumed.

local PARKED = QUEUE .. ':parked:'
local RESUMES = QUEUE .. ':resumes' -- stream, see arrivals.py
local pauses_by_type

local function pauses()
  pauses_by_type = pauses_by_type or by_name(redis.call('HGETALL', PAUSES))
  return pauses_by_type
end

local function is_paused(kind)
  return (pauses()[kind] or '') ~= ''
end

local function parked_member(id, record)
  return priority_of(record.stream) .. ':' .. index_member(id, record)
end

local function is_parked(id, record)
  return pauses()[record.type] and redis.call('ZSCORE', PARKED .. record.type, parked_member(id, record))
end

local function park(id, record)
  redis.call('ZADD', PARKED .. record.type, 0, parked_member(id, record))
end

-- Removes a member of the parked messages of a type. Returns true if it was one.
local function remove_parked(kind, member)
  local is_removed = redis.call('ZREM', PARKED .. kind, member) == 1
  if is_removed and not is_paused(kind) and redis.call('EXISTS', PARKED .. kind) == 0 then
    redis.call('HDEL', PAUSES, kind)
    pauses_by_type[kind] = nil
  end
  return is_removed
end

-- Removes a message that leaves its place from the index of its type. Returns true if it was parked.
local function unindex(id, record)
  if not record.unindexed then
    redis.call('ZREM', QUEUE .. ':type:' .. record.type, index_member(id, record))
  end
  record.unindexed = nil
  return not record.deadline_at and pauses()[record.type] and record.sid and remove_parked(record.type, parked_member(id, record))
end
