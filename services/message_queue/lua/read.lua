#!lua flags=allow-oom
-- Reads messages by their entries.
--
-- ARGV     place, then for each message the stream and the id of its entry
-- Returns  rows of {id, data, record, sid, stream}, as many as fit into a slice: {rows, entries looked at}; an entry
--          that is not in that place any more has no row
--
-- Atomic, so that a message is read where it is. See reading.lua for what bounds a slice.

local place = ARGV[1]
local waiting_behind = {}

local function is_there(row)
  if place ~= 'main' then
    return place_of(row.record) == place
  end
  waiting_behind[row.stream] = waiting_behind[row.stream] or (last_delivered(row.stream))
  return row.stream ~= TYPED and is_later_id(row.sid, waiting_behind[row.stream])
end

local rows, looked = {}, 0
while looked * 2 + 2 < #ARGV and not is_spent() do
  local stream, sid = ARGV[looked * 2 + 2], ARGV[looked * 2 + 3]
  local entry = redis.call('XRANGE', stream, sid, sid)[1]
  looked = looked + 1
  if entry then
    local items = items_of({ stream = stream, rank = 0 }, { entry })
    read_records(items)
    local row = row_of(items[1], place)
    if row and is_there(row) then
      rows[#rows + 1] = shown(row)
    end
  end
end
return { rows, looked }
