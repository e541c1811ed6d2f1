#!lua flags=allow-oom
-- Requeues or dead-letters messages whose deadline has passed, oldest deadline first.
--
-- KEYS[1]  queue name
-- ARGV     maximum number of messages (a slice may be smaller), default max attempts, trigger ('scheduler' for the
--          schedule), ms between periodic sweeps (0: no sweep can be scheduled), '1' if this sweep was scheduled for
--          NEXT_SWEEP, otherwise '0'
-- Returns  {ids requeued, ids dead-lettered, overdue messages scanned, next deadline in ms or 0, now in ms (0 without a
--          deadline), ms until a sweep that the caller must schedule, or 0}; false if another sweeper holds the lock,
--          which a sweep of the schedule looks at only if messages are overdue
--
-- Atomic, so that a message is always in one state; XACK decides which of several sweepers handles it. The cost grows
-- with the number of overdue messages, not of pending ones. The lock belongs to sweepers of other programs; this script
-- needs none. allow-oom, so that a full server can be drained.

local MIN_SWEEP_DELAY = 50 -- ms, so that many deadlines in a row need few sweeps
local MAX_EARLINESS = 500 -- ms by which the clocks of other machines may let a scheduled sweep start too early

local batch, max_attempts, triggered_by, sweep_period, is_scheduled = unpack(ARGV)

-- Returns the first deadline in ms; nil if there is none.
local function first_deadline()
  return tonumber(redis.call('ZRANGE', DEADLINES, 0, 0, 'WITHSCORES')[2])
end

local deadline = first_deadline()
if not deadline and triggered_by == 'scheduler' then
  return { {}, {}, 0, 0, 0, 0 }
end
-- ---- Messages are processed by consumers, or somebody wants to know about the lock.
local is_due = deadline and deadline <= NOW_MS
if (is_due or triggered_by ~= 'scheduler') and redis.call('EXISTS', QUEUE .. ':overdue_requeue_lock') == 1 then
  return false
end
local overdue = {}
if is_due then
  local most = math.min(tonumber(batch), MAX_HANDLED)
  overdue = redis.call('ZRANGE', DEADLINES, '-inf', NOW_MS, 'BYSCORE', 'LIMIT', 0, most)
end
local requeued, dead, records = {}, {}, {}
local TIMED_OUT = 'Processing timeout'
-- How the record of a first delivery ends when its message is requeued.
local REQUEUED = 'requeued ' .. NOW_MS_TEXT .. ' ' .. TIMED_OUT .. '\\n","last_error":"' .. TIMED_OUT
  .. '","unindexed":true}'

-- Requeues or dead-letters a message. Returns its record if it is to be saved.
local function sweep(id, record)
  local data = record and record.sid and release(id, record)
  if not data then
    -- Another consumer has acknowledged or requeued it. A requeued message keeps its record, which counts its attempts;
    -- the record of a deleted one is deleted by check_records.lua.
    end_delivery(id, record or {})
    return record and redis.call('HEXISTS', RECORDS, id) == 1 and record
  elseif record.attempt_count >= (record.custom_max_attempts or tonumber(max_attempts)) then
    dead_letter(id, record, data, 'Max attempts exceeded (Stream)')
    dead[#dead + 1] = id
  else
    record.last_error = TIMED_OUT
    remember(record, 'requeued', record.last_error)
    requeue(id, record, data)
    requeued[#requeued + 1] = id
  end
  return record
end

-- Requeues a message whose record is as its first delivery has written it, like sweep(), without decoding and encoding
-- the record. Returns the new one as text; nil if sweep() must handle the message.
local function requeue_first(id, text)
  local stream, sid, created_at, _, _, kept_at = string.match(text, FIRST_DELIVERY)
  local priority = stream == QUEUE and '0' or string.sub(stream or '', #QUEUE + 3)
  local is_plain = stream and string.find(text, ',"priority":' .. priority .. ',', kept_at, true)
    and not string.find(text, ',"custom_max_attempts":', kept_at, true)
  local data = is_plain and max_attempts + 0 > 1 and not is_index_kept() and release_entry(id, stream, sid)
  if data then
    sid = redis.call('XADD', stream, '*', 'data', data)
    requeued[#requeued + 1] = id
    return moved_record(text, kept_at, stream, sid, created_at, REQUEUED)
  end
end

for i, text in ipairs(#overdue > 0 and redis.call('HMGET', RECORDS, unpack(overdue)) or {}) do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local id = overdue[i]
  local stored = text and requeue_first(id, text)
  if not stored then
    local record = sweep(id, text and record_in(text))
    stored = record and packed(record)
  end
  if stored then
    records[#records + 1], records[#records + 2] = id, stored
  end
end
finish_releases()
if #records > 0 then
  redis.call('HSET', RECORDS, unpack(records))
end
if #requeued + #dead > 0 then
  redis.call('INCRBY', TOTAL_REQUEUED, #requeued)
  redis.call('INCRBY', TOTAL_DEAD, #dead)
  add_count('retried', #requeued)
  add_count('failed', #dead)
  local numbers = '{"count":' .. #requeued .. ',"dlq_count":' .. #dead .. ',"triggered_by":"' .. triggered_by
  announce('requeue', numbers .. '","ids":' .. array(requeued) .. ',"dlq_ids":' .. array(dead) .. '}')
end
if #dead > 0 then
  announce_ids('move_to_dlq', dead)
end
if #overdue > 0 then
  deadline = first_deadline()
end
deadline = deadline or 0
local next_sweep_ms = 0
if deadline > NOW_MS and handled < tonumber(batch) then
  if is_scheduled == '1' and tonumber(redis.call('GET', NEXT_SWEEP) or 0) <= NOW_MS + MAX_EARLINESS then
    redis.call('DEL', NEXT_SWEEP) -- this sweep is the one; if NEXT_SWEEP is later, another sweep has followed already
  end
  next_sweep_ms = schedule_sweep(math.max(deadline, NOW_MS + MIN_SWEEP_DELAY), tonumber(sweep_period))
end
return { requeued, dead, handled, deadline, NOW_MS, next_sweep_ms }
