-- What all scripts of the message queue begin with: keys, limits, clock, streams. A script gets only the definitions that
-- it uses, because Redis runs them at every call. Each file defines what those after it use, in the order of scripts.py.
--
-- KEYS[1]  queue name, the prefix of every other key. In Redis Cluster it is in braces, so that all keys share a slot.
--
-- The server may refuse a command in the middle of a script, such as one that the user of Redis may not use, and does not
-- undo those before it. So an entry is deleted when it has been copied, and events are sent at the end. A message leaves
-- DEADLINES and PENDING by pcall: a key to which another program has written another type has nothing to be removed.
--
-- Times in records are seconds, times in keys and replies milliseconds.

local QUEUE = KEYS[1]
local GROUP = QUEUE .. '_group'
local CONSUMER = 'queue-manager' -- shared by all consumers: Redis never forgets a consumer name
local RECORDS = QUEUE .. '_metadata'
local DEADLINES = QUEUE .. ':deadlines'
local PENDING = QUEUE .. ':pending_ids'
local TYPED = QUEUE .. '_typed'
local MANUAL = QUEUE .. '_manual' -- messages that an older service takes by type, or requeues
local DEAD = QUEUE .. '_dlq'
local ACKNOWLEDGED = QUEUE .. '_acknowledged'
local ARCHIVED = QUEUE .. '_archived'
local TOTAL_ACKNOWLEDGED = QUEUE .. ':stats:total_acknowledged'
local TOTAL_REQUEUED = QUEUE .. ':stats:total_requeued' -- by sweeps, like TOTAL_DEAD
local TOTAL_DEAD = QUEUE .. ':stats:total_dead_lettered'
local TYPES = QUEUE .. ':types' -- exists if type indexes are kept: since a consumer first asked for a type
local NEXT_SWEEP = QUEUE .. ':next_sweep'
local PAUSES = QUEUE .. ':pauses' -- by type, who paused it and why, as JSON; '' once resumed, while some are still parked

local MAX_ACKNOWLEDGED = '100' -- acknowledged messages that are retained; a text, because commands format numbers slowly
local MAX_EVENTS = '50000' -- approximate number of events until fold_counts.lua trims them
local MIN_MILLISECONDS = 1e11 -- other programs may write times in ms; as seconds this is the year 5138
local LAST_SECOND = 253402300799 -- of the year 9999
local MAX_NUMBER = 1e9 -- maximum of seconds or attempts in records of other producers
local MAX_REPLAY_HISTORY = 10 -- earlier failures that a replayed message keeps
local MAX_ID_BYTES = 256 -- bytes
local MAX_EVENTS_BYTES = 2000 -- bytes of the events that a record keeps
local MAX_EVENT_TEXT = 200 -- bytes of the text of an event
local LAST_SID_PART = '18446744073709551615'
local HIGHEST_PRIORITY = ARGV[1] - 1 -- in scripts whose first argument is the number of priorities

-- A script blocks all other clients. A script for many messages therefore stops after this number of messages or
-- payload bytes, at most 10 ms, and its caller runs it again for the rest.
local MAX_HANDLED = 100
local MAX_BYTES = 1024 * 1024
local DECODE_COST = 6 -- decoding one byte of JSON costs as much as reading this many
local MAX_CLEANED = 10 -- type indexes of which one call drops stale members
local MAX_READ = 8 -- entries per read while they are small
local SMALL_ENTRY_BYTES = 16 * 1024 -- bytes

local clock = redis.call('TIME')
local SECONDS, MILLISECONDS = clock[1], string.sub('00000' .. clock[2], -6, -4)
local NOW_MS_TEXT, NOW_TEXT = SECONDS .. MILLISECONDS, SECONDS .. '.' .. MILLISECONDS
local NOW_MS = tonumber(NOW_MS_TEXT)
local NOW = NOW_MS / 1000

local handled, handled_bytes = 0, 0

local function is_slice_full()
  return handled >= MAX_HANDLED or handled_bytes >= MAX_BYTES
end

local STREAMS_BY_STATE = { dead = DEAD, acknowledged = ACKNOWLEDGED, archived = ARCHIVED }
local STATES_BY_STREAM = { [DEAD] = 'dead', [ACKNOWLEDGED] = 'acknowledged', [ARCHIVED] = 'archived' }

-- Returns a natural number as a text. Formatting one costs as much as a small command.
local function number_text(number)
  return number < 10 and string.sub('0123456789', number + 1, number + 1) or string.format('%d', number)
end

-- The streams of the priorities from 1 on. Most queues have no more; a loop that names them costs three times as much.
local STREAMS = {
  QUEUE .. '_p1', QUEUE .. '_p2', QUEUE .. '_p3', QUEUE .. '_p4', QUEUE .. '_p5', QUEUE .. '_p6', QUEUE .. '_p7',
  QUEUE .. '_p8', QUEUE .. '_p9'
}

local function stream_of(priority)
  return priority > 0 and (STREAMS[priority] or string.format('%s_p%d', QUEUE, priority)) or QUEUE
end

local function priority_of(stream)
  return string.sub(stream, 1, #QUEUE) == QUEUE and tonumber(string.match(stream, '^_p(%d+)$', #QUEUE + 1)) or 0
end

-- Returns a reply of names and values as a table.
local function by_name(reply)
  local values = {}
  for i = 1, #reply, 2 do
    values[reply[i]] = reply[i + 1]
  end
  return values
end
