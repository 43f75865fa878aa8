(function_declaration name: (identifier) @name) @function
(call_expression function: [(identifier) @call (field_expression member: (identifier) @call)])
(comment) @attach
