#!lua flags=allow-oom
-- Checks whether each message that has a record can be received, one slice of the records per call, because another program
-- may have changed the keys of the queue. Deletes the records of entries that were deleted. Requeues, in any order, messages
-- that no consumer would receive: the group has passed over their entries, and they are neither pending nor parked, because
-- the consumer of the group or the key of the parked messages was deleted, or a stream was renamed and renamed back.
--
-- KEYS[1]  queue name
-- ARGV     number of priorities
-- Returns  {number of messages requeued, 1 after the last slice, else 0}; the next call continues with the next slice
--
-- A message is requeued in the second round that finds it, because a program may acknowledge an entry and delete it a moment
-- later. Atomic, so that no consumer receives the message meanwhile. allow-oom, so that a full server can be drained.

local CURSOR = QUEUE .. ':forget_cursor'

local last_read = {} -- by stream, the last entry that the group has delivered

local function is_passed_over(id, record)
  local stream = record.stream
  last_read[stream] = last_read[stream] or index_member('', { sid = (last_delivered(stream)) })
  return state_of(record) == 'main' and index_member('', record) <= last_read[stream]
    and not is_pending(stream, record.sid) and not is_parked(id, record)
end

local requeued = 0

local function check(id, record)
  if forget_if_lost(id, record) or not is_passed_over(id, record) then
    return
  elseif record.passed_over ~= record.sid then
    record.passed_over = record.sid
    save(id, record)
  else
    record.passed_over = nil
    remember(record, 'requeued', 'The consumer group had passed over it')
    put_back(id, record, entry_at(record.stream, record.sid))
    requeued, handled = requeued + 1, handled + 1
  end
end

local cursor = redis.call('GET', CURSOR) or '0'
repeat
  local answer = redis.call('HSCAN', RECORDS, cursor, 'COUNT', MAX_READ)
  cursor = answer[1]
  for i = 1, #answer[2], 2 do
    handled = handled + 1
    local record = record_in(answer[2][i + 1])
    if record and record.sid then
      check(answer[2][i], record)
    end
  end
until cursor == '0' or is_slice_full()
redis.call('SET', CURSOR, cursor)
return { requeued, cursor == '0' and 1 or 0 }
