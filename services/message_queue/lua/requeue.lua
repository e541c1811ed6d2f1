#!lua flags=allow-oom
-- Takes back messages whose deadline has passed, the oldest deadline first.
--
-- ARGV     most messages of this call, which stops at a slice, default max attempts, who asks ('scheduler' for the schedule), ms to the next
--          periodic sweep (0: none can be planned)
-- Returns  {ids requeued, ids dead-lettered, overdue ones looked at, the next deadline in ms or 0, now in ms,
--          ms until a sweep that the caller is to plan, or 0}, or false while another sweeper holds the lock
--
-- Atomic, so that a message is in one place whatever dies; XACK decides whose it is. The cost follows what is
-- overdue, never what is pending. The lock is respected for sweepers that need more than one step; this one is alone
-- while it runs. With allow-oom: a full server must be drained.

local COALESCED = 50 -- ms: a planned sweep comes no sooner, so that a stream of deadlines costs few sweeps

local batch, max_attempts, triggered_by, sweep_within = unpack(ARGV)
if redis.call('EXISTS', QUEUE .. ':overdue_requeue_lock') == 1 then
  return false
end
local most = math.min(tonumber(batch), MAX_HANDLED)
local overdue = redis.call('ZRANGE', DEADLINES, '-inf', NOW_MS, 'BYSCORE', 'LIMIT', 0, most)
local requeued, dead = {}, {}
for _, id in ipairs(overdue) do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  local record = record_of(id)
  local data = record and record.sid and release(id, record)
  if not data then
    -- Another consumer has acknowledged it, or requeued it: then its record counts its attempts. Else it is forgotten
    -- when its entry is missed.
    end_delivery(id, record or {})
    if record and redis.call('HEXISTS', RECORDS, id) == 1 then
      save(id, record)
    end
  elseif record.attempt_count >= (record.custom_max_attempts or tonumber(max_attempts)) then
    bury(id, record, data, 'Max attempts exceeded (Stream)')
    dead[#dead + 1] = id
  else
    record.last_error = 'Processing timeout'
    put_back(id, record, data)
    requeued[#requeued + 1] = id
  end
end
if #requeued + #dead > 0 then
  redis.call('INCRBY', TOTAL_REQUEUED, #requeued)
  redis.call('INCRBY', TOTAL_DEAD, #dead)
  local counts = '{"count":' .. #requeued .. ',"dlq_count":' .. #dead .. ',"triggered_by":"' .. triggered_by
  announce('requeue', counts .. '","ids":' .. array(requeued) .. ',"dlq_ids":' .. array(dead) .. '}')
end
if #dead > 0 then
  announce_ids('move_to_dlq', dead)
end
local first = redis.call('ZRANGE', DEADLINES, 0, 0, 'WITHSCORES')
local deadline = tonumber(first[2]) or 0
local planned = 0
if deadline > NOW_MS and handled < tonumber(batch) then
  planned = plan_sweep(math.max(deadline, NOW_MS + COALESCED), tonumber(sweep_within))
end
return { requeued, dead, handled, deadline, NOW_MS, planned }
