(function_declaration name: [(identifier) @name (dot_index_expression field: (identifier) @name)
                             (method_index_expression method: (identifier) @name)]) @function
(assignment_statement (variable_list name: [(identifier) @name (dot_index_expression field: (identifier) @name)])
                      (expression_list value: (function_definition))) @function
(function_call name: [(identifier) @call (dot_index_expression field: (identifier) @call)
                      (method_index_expression method: (identifier) @call)])
(comment) @attach
