#!lua flags=allow-oom
-- Moves messages to another state for an operator; moving a dead letter to main replays it.
--
-- KEYS[1]  queue name
-- ARGV     required source state ('' for any), target state ('main', 'dead', 'archived' or 'acknowledged'), reason,
--          then the ids
-- Returns  for each id of this slice 'MOVED', 'NOT_FOUND' if it is not in the source state, or 'UNDECODABLE' if it
--          cannot be delivered
--
-- Atomic, so that a message is always in one state and a deleted message is never recreated. allow-oom, so that a full
-- server can be drained.

local from, to, reason = unpack(ARGV, 1, 3)

-- Resets the attempts of a replayed message, and adds its failure to its history.
local function reset_attempts(record)
  local earlier = record.history or {}
  if record.failed_at then
    earlier[#earlier + 1] = {
      attempt_count = record.attempt_count, failed_at = record.failed_at, last_error = record.last_error
    }
  end
  while #earlier > MAX_REPLAY_HISTORY do
    table.remove(earlier, 1)
  end
  record.history = #earlier > 0 and earlier or nil
  record.attempt_count, record.failed_at, record.acknowledged_at = 0, nil, nil
end

local function take_out(id, record, state)
  if state == 'processing' then
    return release(id, record)
  end
  local data = entry_at(record.stream, record.sid)
  record.archived_at = nil
  if data and state == 'main' then
    unindex(id, record)
  end
  return data and without_outcome(record, data)
end

local function put_into(id, record, data, state)
  if to == 'main' then
    if state ~= 'processing' then
      reset_attempts(record)
    end
    remember(record, state == 'dead' and 'replayed' or 'requeued', reason)
    requeue(id, record, data)
  elseif to == 'dead' then
    dead_letter(id, record, data, reason)
  elseif to == 'acknowledged' then
    add_to_history(id, record, data)
    trim_history(1)
  else
    record.archived_at = NOW
    remember(record, 'archived')
    append(ARCHIVED, id, record, with_outcome(record, data, { archived_at = NOW }))
  end
  save(id, record)
end

local function move(id)
  local record = record_of(id)
  local state = record and record.sid and state_of(record)
  if not state or state == to or (from ~= '' and state ~= from) then
    return 'NOT_FOUND'
  end
  if record.undecodable and to == 'main' then
    return 'UNDECODABLE'
  end
  local stream, sid = record.stream, record.sid
  local data = take_out(id, record, state)
  if not data then
    return 'NOT_FOUND'
  end
  put_into(id, record, data, state)
  if state ~= 'processing' then
    redis.call('XDEL', stream, sid)
    redis.call('XACK', stream, GROUP, sid) -- in case another consumer has it pending
  end
  return 'MOVED'
end

local answers, moved = {}, {}
for i = 4, #ARGV do
  if is_slice_full() then
    break
  end
  handled = handled + 1
  answers[#answers + 1] = move(ARGV[i])
  if answers[#answers] == 'MOVED' then
    moved[#moved + 1] = ARGV[i]
  end
end
finish_releases()
if #moved > 0 then
  local numbers = '{"count":' .. #moved .. ',"from":"' .. from .. '","to":"' .. to
  announce('move', numbers .. '","ids":' .. array(moved) .. '}')
end
return answers
